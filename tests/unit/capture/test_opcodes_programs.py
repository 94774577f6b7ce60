"""Every opcode of CPython 3.11 to 3.14, by small programs that compile to it, and random programs.

The running version has torch; the others run the same programs in a process of their own, if they are found, with a
stand-in for torch. Where there is no Python 3.14, `opcode_check.mjs` runs its programs in CPython for WebAssembly, by
hand::

    npm install pyodide@314.0.7
    pip install --no-deps --target packages bytecode==0.19.1
    node .../opcode_check.mjs packages 12
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import bytecode
import pytest
from opcode_check import VERSION, run_case, run_random
from opcode_programs import CASES

from lampwork.capture.opcodes import VERSIONS

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "12"))
HERE = Path(__file__).parent


def name_of(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def interpreter_of(version: tuple[int, int]) -> str | None:
    """A Python of this version that runs; None if none is found."""
    if version == VERSION:
        return sys.executable
    name = name_of(version)
    installed = sorted(Path.home().glob(f".pyenv/versions/{name}.*/bin/python"))
    for candidate in (shutil.which(f"python{name}"), *map(str, installed)):
        if candidate is None:
            continue
        question = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(question, capture_output=True, text=True)
        if answer.returncode == 0 and answer.stdout.strip() == name:
            return candidate
    return None


@functools.cache
def ran(version: tuple[int, int]) -> subprocess.CompletedProcess[str] | None:
    """`opcode_check.py` in a Python of this version, whose only package is `bytecode`; None if there is no Python."""
    python = interpreter_of(version)
    if python is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bytecode").symlink_to(Path(bytecode.__file__).parent)
        return subprocess.run(
            [python, "-S", "-X", "faulthandler", str(HERE / "opcode_check.py"), str(COUNT)],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([folder, str(HERE), str(HERE.parents[1] / "support")]),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )


def found(version: tuple[int, int], what: str) -> Any:
    """One of the findings that `opcode_check.py` prints."""
    process = ran(version)
    if process is None:
        pytest.skip(f"no Python {name_of(version)} here")
    findings = [json.loads(line) for line in process.stdout.splitlines()]
    for finding in findings:
        if what in finding:
            return finding[what]
    raise AssertionError(process.stderr)


@pytest.mark.parametrize("opcode", CASES[VERSION])
def test_opcode(opcode):
    for case in CASES[VERSION][opcode]:
        assert run_case(opcode, case) is None, case.source


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program_fuzz(seed):
    assert run_random(seed) is None


@pytest.mark.parametrize(
    ("version", "opcode"),
    [pytest.param(v, opcode, id=f"{name_of(v)}-{opcode}") for v in CASES for opcode in CASES[v]],
)
def test_opcode_without_torch(version, opcode):
    assert found(version, "cases")[opcode] is None


@pytest.mark.parametrize("version", CASES, ids=name_of)
def test_random_programs_without_torch_fuzz(version):
    problems = [problem for problem in found(version, "random").values() if problem is not None]
    assert not problems, problems[0]


@pytest.mark.parametrize("version", CASES, ids=name_of)
def test_every_opcode_of_a_version_is_accounted_for(version):
    module = VERSIONS[version]
    assert set(found(version, "opcodes")) == {*module.OPCODES, *module.FOLDED}
