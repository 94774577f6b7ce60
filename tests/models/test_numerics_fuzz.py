"""Random pointwise programs: eager's very bits where eager rounds once, and eager's accuracy elsewhere.

`LAMPWORK_FUZZ=n` tries n programs of each kind; the seed is the test's parameter, and a failure prints the program,
shrunk.
"""

from __future__ import annotations

import os
import random
import warnings
from typing import Any

import numeric_programs
import pytest
from numeric_programs import Program
from same import assert_same

import lampwork
from lampwork.codegen.llvm.isa.x86 import host_flags, widest

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "120"))
_NARROWER = ("", "", "avx2", "sse4")


def _compiled(program: Program, **options: Any) -> Any:
    return lampwork.compile(program.function(), options={"strict": True, **options})(*program.inputs)


def _differences(program: Program, isa: str) -> list[str]:
    """Where the compiled program's results differ from eager's in a bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = program.function()(*program.inputs)
        got = _compiled(program, isa=isa)
    found = [numeric_programs.first_difference(a, b) for a, b in zip(got, want, strict=True)]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("seed", range(_COUNT))
def test_fuzz_bits(seed: int) -> None:
    program = numeric_programs.exact_program(random.Random(seed))
    try:
        program.function()(*program.inputs)
    except RuntimeError:
        return  # eager refuses it
    isa = _host_or(_NARROWER[seed % len(_NARROWER)])
    if _differences(program, isa):
        smaller = program.shrunk(lambda each: bool(_differences(each, isa)))
        pytest.fail(f"seed {seed}, isa {isa!r}: {_differences(smaller, isa)}\n{smaller}")


@pytest.mark.parametrize("seed", range(_COUNT // 2))
@pytest.mark.parametrize("numerics", ["eager", "fast"])
def test_fuzz_accuracy(seed: int, numerics: str) -> None:
    program = numeric_programs.smooth_program(random.Random(seed))

    def fails(each: Program) -> bool:
        try:
            assert_same(each.function(), _compiled(each, numerics=numerics), *each.inputs)
        except AssertionError:
            return True
        return False

    if fails(program):
        pytest.fail(f"seed {seed}:\n{program.shrunk(fails)}")


def _host_or(isa: str) -> str:
    """`isa` where this processor has it, else the widest that it has."""
    widths = ("sse4", "avx2", "avx512")
    has = widest(host_flags())
    return isa if isa and widths.index(isa) <= widths.index(has) else ""
