"""What the tests of the fuzzers of programs share: a run of one, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def none_differ(script: str, count: int) -> None:
    """None of so many programs of a fuzzer in this folder differs: of more with LAMPWORK_FUZZ, of others with
    LAMPWORK_FUZZ_SEED."""
    count = int(os.environ.get("LAMPWORK_FUZZ", count))
    seed = os.environ.get("LAMPWORK_FUZZ_SEED", "0")
    command = [sys.executable, "-W", "ignore", str(Path(__file__).parent / script), "--seed", seed]
    done = subprocess.run([*command, "-n", str(count)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 differ" in done.stdout
