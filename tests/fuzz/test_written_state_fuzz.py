"""Random programs that write state and read it within one region do what they do in eager: few here, many with
LAMPWORK_FUZZ (`make fuzz`).

A failure prints its seed and the program, shrunk; `python tests/fuzz/written_state.py --seed SEED -n 1` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from program_sides import compared
from written_grammar import grown
from written_places import KINDS
from written_sides import WrittenSide

from lampwork.capture.semantics import held_state

FOLDER = Path(__file__).parent
COUNT = int(os.environ.get("LAMPWORK_FUZZ", "24"))
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


def test_it_finds_reads_that_do_not_go_by_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reads of a namespace pass over the copy of it that the region writes to, one of the programs that run here
    by default says so."""
    monkeypatch.delenv("LAMPWORK_STRICT")
    # No Python of the program's, which would end the region.
    monkeypatch.setattr(held_state, "dict_shadow", mock.Mock(return_value=None))
    found = next(seed for seed in range(24) if compared(grown(seed), "eager", WrittenSide) is not None)
    monkeypatch.undo()
    assert compared(grown(found), "eager", WrittenSide) is None
