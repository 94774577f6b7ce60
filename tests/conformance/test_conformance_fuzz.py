"""Random programs do what eager does; a failure prints the program's source. Set LAMPWORK_FUZZ for more of them.

What they found wrong once stands in python_found.py, each in its smallest form.
"""

from __future__ import annotations

import os
from pathlib import Path

import harness
import pytest
from program_generator import Generator

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "60"))


def check(seed: int, *, breaks: bool) -> None:
    source = Generator(seed, breaks=breaks).source()
    path = Path(f"fuzz_{seed}.py")
    try:
        report = harness.run(path, compile(source, str(path), "exec"), "f")
        assert report.wrong is None, report.wrong
    except BaseException:
        print(source[source.index("@program") :])
        raise


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program(seed: int) -> None:
    check(seed, breaks=seed % 3 == 0)
