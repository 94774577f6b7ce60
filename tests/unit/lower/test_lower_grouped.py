"""Products of groups of rows: torch's operator and the one of transformers, lowered, guarded by pages, compiled."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from children import failure
from instruction_sets import INSTRUCTION_SETS
from lower_harness import check, record
from test_guarded_memory import Case
from test_guarded_memory import check as check_guarded

import lampwork
from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.graph import grouped_trial
from lampwork.loops.ir.nodes import Definition, Gemm
from lampwork.runtime.program import Program

pytest.importorskip("transformers.integrations.moe")

Tensor = torch.Tensor
aten_mm: Any = torch.ops.aten._grouped_mm
library_mm: Any = torch.ops.transformers.grouped_mm_fallback
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def operands(
    rows: int,
    depth: int,
    columns: int,
    ends: list[int],
    dtype: torch.dtype = torch.float32,
    *,
    flipped: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """x, w and the ends; `flipped`: a matrix lies as a linear layer's weight does."""
    x = torch.randn(rows, depth).to(dtype)
    shape = (len(ends), columns, depth) if flipped else (len(ends), depth, columns)
    w = torch.randn(shape).to(dtype)
    return x, w.transpose(1, 2) if flipped else w, torch.tensor(ends, dtype=torch.int32)


def of_library(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return torch.relu(library_mm(x, w, ends) * 2) + 1


def of_torch(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return aten_mm(x, w, ends)[:4] + 1


def definitions(fn: Any, inputs: tuple[Tensor, ...]) -> list[Definition]:
    artifacts = Artifacts()
    recorded = record(fn, inputs)
    compile_program(recorded.graph, recorded.mutations, host_isa(), artifacts)
    return artifacts.definitions


def products(found: list[Definition]) -> list[Gemm]:
    return [each for each in found if isinstance(each, Gemm)]


@pytest.mark.parametrize("flipped", [True, False])
@pytest.mark.parametrize("ends", [[3, 3, 7], [0, 0, 0], [9, 9, 9], [0, 5, 9]], ids=str)
def test_the_definition_is_what_eager_computes(ends: list[int], flipped: bool) -> None:
    lowered = check(of_library, *operands(9, 5, 6, ends, flipped=flipped), scale=4)
    (gemm,) = products(lowered.definitions)
    assert gemm.group is not None and gemm.group.extent.as_int() == 3


def test_torch_operator() -> None:
    lowered = check(of_torch, *operands(9, 8, 12, [2, 4, 9]), scale=4)
    assert len(products(lowered.definitions)) == 1
    check(lambda x, w: aten_mm(x, w), torch.randn(3, 4, 8), torch.randn(3, 12, 8).transpose(1, 2), scale=4)


def test_the_activation_is_computed_with_the_product() -> None:
    """One kernel looks at the ends, the other is all the rest."""
    recorded = record(of_library, operands(9, 5, 6, [3, 3, 7]))
    program = compile_program(recorded.graph, recorded.mutations, host_isa(), Artifacts())
    assert isinstance(program, Program)
    assert len(program.instructions) == 2


def cases() -> list[Case]:
    pick = random.Random(0)
    table: list[Case] = []
    for depth in (1, 3, 16, 65, 200):
        for columns in (1, 7, 48, 65):
            rows = pick.choice((1, 2, 5, 9, 33, 140))
            ends = sorted(pick.choice((0, rows, pick.randint(0, rows))) for _ in range(4))
            dtype, flipped = pick.choice(DTYPES[:3]), pick.random() < 0.5
            name = f"{rows}x{depth}x{columns} {ends} {dtype} {flipped}"
            # Eager's sums of half types are rounded otherwise: what is compared is rounded to few digits.
            fn = (
                of_library if dtype != torch.bfloat16 else lambda x, w, ends: library_mm(x / 16, w / 16, ends)
            )
            table.append((name, fn, operands(rows, depth, columns, ends, dtype, flipped=flipped), []))
    return table


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_nothing_beside_buffers(isa: str, front: bool) -> None:
    assert not failure([(case[0], partial(check_guarded, case, isa, front=front)) for case in cases()])


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled(dtype: torch.dtype) -> None:
    """Any sizes of groups are one version, within twice eager's error against double precision."""
    compiled = lampwork.compile(library_mm, options={"strict": True})
    pick = random.Random(1)
    for _ in range(12):
        ends = sorted(pick.choice((0, 90, pick.randint(0, 90))) for _ in range(5))
        x, w, where = operands(90, 70, 50, ends, dtype)
        exact = library_mm(x.double(), w.double(), where)
        got, eager = compiled(x, w, where), library_mm(x, w, where)
        most = 2 * (eager.double() - exact).abs().max() + 4 * torch.finfo(dtype).eps * exact.abs().max()
        assert (got.double() - exact).abs().max() <= most
        assert not got[ends[-1] :].any()
    assert len(compiled.entries) == 1


def test_rows_of_any_number() -> None:
    compiled = lampwork.compile(of_library, dynamic=True, options={"strict": True})
    for rows in (5, 1, 64, 300, 2):
        x, w, ends = operands(rows, 24, 40, [rows // 3, rows // 2, rows])
        torch.testing.assert_close(compiled(x, w, ends), of_library(x, w, ends), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ends", [[5, 2, 9], [-2, 3, 9], [3, 6, 12], [0, 9, 4]], ids=str)
def test_other_ends_are_slices_of_eager(ends: list[int]) -> None:
    given = operands(9, 8, 12, ends)
    compiled = lampwork.compile(library_mm)
    compiled(*operands(9, 8, 12, [1, 2, 9]))
    try:
        wanted = library_mm(*given)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as caught:
            compiled(*given)
        assert str(caught.value) == str(error)
        return
    torch.testing.assert_close(compiled(*given), wanted)


def test_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        x, w, ends = operands(700, 128, 200, [100, 100, 650, 690])
        compiled = lampwork.compile(library_mm, options={"strict": True})
        torch.testing.assert_close(compiled(x, w, ends), library_mm(x, w, ends), rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_gradients() -> None:
    x, w, ends = operands(20, 16, 24, [4, 4, 15])
    compiled = lampwork.compile(of_library)
    grads = []
    for fn in (of_library, compiled):
        x_, w_ = x.clone().requires_grad_(), w.detach().clone().requires_grad_()
        fn(x_, w_, ends).sum().backward()
        grads.append((x_.grad, w_.grad))
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)


def test_an_operator_that_does_something_else_stays_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_trial, "_found", {library_mm.default.name(): False})
    found = definitions(library_mm, operands(9, 5, 6, [3, 3, 7]))
    assert not products(found)


def test_the_trial_tells_operators_apart() -> None:
    assert grouped_trial.multiplies_groups(library_mm.default)
    with torch.library._scoped_library("lampwork_tests_grouped", "DEF") as library:
        library.define("off(Tensor x, Tensor w, Tensor ends) -> Tensor")
        library.impl("off", lambda x, w, ends: library_mm(x, w, ends) + 1, "CPU")
        library.define("fails(Tensor x, Tensor w, Tensor ends) -> Tensor")
        library.impl("fails", lambda x, w, ends: x[ends[0] : ends[0], 99], "CPU")
        assert not grouped_trial.multiplies_groups(torch.ops.lampwork_tests_grouped.off.default)
        assert not grouped_trial.multiplies_groups(torch.ops.lampwork_tests_grouped.fails.default)


def test_no_elements() -> None:
    for rows, depth, columns in ((0, 3, 4), (5, 0, 4), (5, 3, 0)):
        given = operands(rows, depth, columns, [0, rows])
        assert torch.equal(lampwork.compile(library_mm)(*given), library_mm(*given))
