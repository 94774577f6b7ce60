"""Random programs do what eager does; a failure prints the program's source. Set LAMPWORK_FUZZ for more of them.

A seed that failed once stays in fuzz_cases.txt, with what it found.
"""

from __future__ import annotations

import os
from pathlib import Path

import harness
import pytest
from program_generator import Generator

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "60"))
CASES = [
    line.split("#")[0].split()
    for line in (Path(__file__).parent / "fuzz_cases.txt").read_text().splitlines()
    if line.split("#")[0].strip()
]


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


@pytest.mark.parametrize(("seed", "kind"), CASES)
def test_past_failure(seed: str, kind: str) -> None:
    check(int(seed), breaks=kind == "breaks")
