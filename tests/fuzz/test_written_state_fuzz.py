"""Random programs that write state and read it within one region do what they do in eager: few here, many with
LAMPWORK_FUZZ (`make fuzz`).

A failure prints its seed and the program, shrunk; `python tests/fuzz/written_state.py --seed SEED -n 1` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program_fuzz import backend_of
from program_sides import compared, difference, run
from written_grammar import grown
from written_places import KINDS
from written_sides import WrittenSide

import lampwork.capture.semantics.attributes as attributes
import lampwork.capture.semantics.held_state as held_state

FOLDER = Path(__file__).parent
COUNT = int(os.environ.get("LAMPWORK_FUZZ", "30"))
SEED = os.environ.get("LAMPWORK_FUZZ_SEED", "0")


def test_state_that_random_programs_write() -> None:
    command = [sys.executable, "-W", "ignore", str(FOLDER / "written_state.py"), "--seed", SEED]
    done = subprocess.run([*command, "-n", str(COUNT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 differ" in done.stdout


def test_a_program_that_writes_is_its_seeds() -> None:
    assert grown(7) == grown(7) != grown(8)
    texts = [grown(seed) for seed in range(300)]
    for text in texts:
        compile(text, "program", "exec")
    for kind in KINDS:
        assert any(f"{kind}0" in text for text in texts), kind
