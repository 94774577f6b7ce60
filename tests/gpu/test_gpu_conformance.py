"""The conformance programs, with their arguments, modules and globals on the GPU."""

from __future__ import annotations

import harness
import pytest
from unmet import UNMET

import gpu

gpu.require()

FILES = {path.stem: harness.load(path) for path in harness.all_files()}
PATHS = {path.stem: path for path in harness.all_files()}
# Those about tensors first.
PROGRAMS = sorted(
    (f"{stem}::{name}" for stem, (_, names) in FILES.items() for name in names),
    key=lambda program: not program.startswith("torch_"),
)
PROGRAMS = [program for program in PROGRAMS if program not in gpu.CPU_ALONE]


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_on_gpu(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stem, name = program.split("::")
    report, raises = gpu.run_program(PATHS[stem], FILES[stem][0], name, monkeypatch)
    assert report.wrong is None, report.wrong
    if not raises and program not in UNMET:
        assert report.unexpected is None, report.unexpected
