"""Every mutation of state that a compiled function has read is seen: few here, many with LAMPWORK_FUZZ (`make fuzz`).

A failure prints the program, the path of the slot, what was put there, the fewest calls that show it, and the seed;
`python tests/fuzz/state_mutations.py PROGRAM --only 'PATH | LABEL'` repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import harness
import pytest

FOLDER = Path(__file__).parent
COUNT = int(os.environ.get("LAMPWORK_FUZZ", "0"))
SEED = os.environ.get("LAMPWORK_FUZZ_SEED", "0")

LONG = [
    *(path.stem for path in sorted(FOLDER.glob("worlds_*.py"))),
    *(path.stem for path in harness.all_files()),
    "architectures",
]


@pytest.mark.parametrize("files", LONG if COUNT else ["worlds"])
def test_every_mutation_is_seen(files: str) -> None:
    if files == "architectures":
        pytest.importorskip("transformers")
    count = max(COUNT // 20, 6)
    command = [sys.executable, "-W", "ignore", str(FOLDER / "state_mutations.py"), files]
    done = subprocess.run(
        [*command, "-n", str(count), "--seed", SEED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 unseen" in done.stdout
