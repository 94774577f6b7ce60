"""Each conformance program does what eager does, with the breaks that its author expects."""

from __future__ import annotations

import functools
import types
from pathlib import Path

import harness
import pytest
from unmet import UNMET

FILES = {path.stem: path for path in harness.all_files()}


@functools.cache
def loaded(path: Path) -> tuple[types.CodeType, list[str]]:
    return harness.load(path)


PROGRAMS = [f"{stem}::{name}" for stem, path in FILES.items() for name in loaded(path)[1]]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str) -> None:
    stem, name = program.split("::")
    report = harness.run(FILES[stem], loaded(FILES[stem])[0], name)
    assert report.wrong is None, report.wrong
    if program in UNMET:
        assert report.unexpected is not None, "its expectation is met: take it off the list in unmet.py"
    else:
        assert report.unexpected is None, report.unexpected


def test_expectations() -> None:
    """At least 95 of 100 programs have exactly the breaks expected."""
    assert set(UNMET) <= set(PROGRAMS), "unmet.py names programs that are not there"
    assert len(UNMET) <= 0.05 * len(PROGRAMS), f"{len(UNMET)} of {len(PROGRAMS)} programs are on the list"
