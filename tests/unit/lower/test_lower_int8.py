"""Products of int8 and of weights that were int8, as operators: lowered, guarded by pages, and what stays ATen's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from children import failure
from instruction_sets import INSTRUCTION_SETS
from lower_harness import record
from scalar_target import SCALAR
from test_guarded_memory import Case, check
from torch import Tensor

from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.codegen.target import Target
from lampwork.loops.ir.nodes import Definition, Extern, Gemm
from lampwork.runtime.program import Program
from lampwork.transforms.pipeline import run_passes

int_mm: Any = torch.ops.aten._int_mm


def bytes_of(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(0))


def definitions(
    fn: Callable[..., Any], inputs: list[Tensor], bound: list[Tensor], target: Target | None = None
) -> tuple[list[Definition], list[Definition]]:
    """Those of the program of `fn`: on each call, and once per set of weights."""
    artifacts = Artifacts()
    recorded = record(fn, inputs, bound)
    run_passes(recorded.graph)
    compile_program(recorded.graph, recorded.mutations, target or host_isa(), artifacts)
    return artifacts.definitions, artifacts.constant


def gemms(found: list[Definition]) -> list[Gemm]:
    return [each for each in found if isinstance(each, Gemm)]


def rows_by_scale(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    step = x.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
    sums = int_mm((x / step).round().to(torch.int8), w.t())
    return sums.float() * step * scale + bias


def widened(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, w.float() * scale[:, None], bias)


def products() -> list[Case]:
    table: list[Case] = []
    for n in (2, 3, 17, 64, 65):
        x, w, scale, bias = torch.randn(5, n), bytes_of(n, n), torch.rand(n) / 128, torch.randn(n)
        left = bytes_of(9, n)
        table += [
            (f"panels {n}", lambda a, b: int_mm(a, b.t()), [left], [w]),
            (f"one row {n}", lambda a, b: int_mm(a[:1], b.t()), [left], [w]),
            (f"inputs {n}", int_mm, [left, w], []),
            (f"columns {n}", lambda a, b: int_mm(a.t(), b.t()), [bytes_of(n, 3), w], []),
            (f"a part of rows {n}", lambda a, b: int_mm(a[1:, :-1], b), [bytes_of(3, n + 1)], [w]),
            (f"scaled {n}", rows_by_scale, [x], [w, scale, bias]),
            (f"widened {n}", widened, [x], [w, scale, bias]),
            (f"widened, one row {n}", lambda x, *rest: widened(x[:1], *rest), [x], [w, scale, bias]),
        ]
    return table


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_nothing_beside_buffers(isa: str, front: bool) -> None:
    assert not failure([(case[0], partial(check, case, isa, front=front)) for case in products()])


def test_a_quantized_layer_is_two_kernels() -> None:
    """One reads the rows and writes int8; the scales, the bias and what follows are the product's epilogue."""
    w, scale, bias = bytes_of(64, 48), torch.rand(64), torch.randn(64)
    recorded = record(lambda *args: F.relu(rows_by_scale(*args)), [torch.randn(9, 48)], [w, scale, bias])
    run_passes(recorded.graph)
    program = compile_program(recorded.graph, recorded.mutations, host_isa(), Artifacts())
    assert isinstance(program, Program)
    assert len(program.instructions) == 2


def test_weights_stay_bytes() -> None:
    w, scale, bias = bytes_of(64, 48), torch.rand(64), torch.randn(64)
    for rows in (1, 9):
        main, constant = definitions(widened, [torch.randn(rows, 48)], [w, scale, bias])
        (gemm,) = gemms(main)
        assert (gemm.a.buffer.dtype, gemm.b.buffer.dtype) == ("f32", "i8")
        assert not [each for each in constant if isinstance(each, Extern) and each.outs[0].shape == (64, 48)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w, s: F.linear(x, w.float() * s[None, :48]),  # a scale for each input
        lambda x, w, s: F.linear(x, w.float() + s[:, None]),
        lambda x, w, s: F.linear(x, (w.float() * s[:, None]) * s[:, None]),
        lambda x, w, s: F.linear(x, w.t().reshape(64, 48).float() * s[:, None]),
        lambda x, w, s: F.linear(x, (w.float() * s[:, None])[:, :7].repeat(1, 7)[:, :48]),
    ],
)
def test_other_weights_made_of_bytes(fn: Callable[..., Any]) -> None:
    """Right in any case; whether they are read as bytes is a matter of speed."""
    x, w, s = torch.randn(5, 48), bytes_of(64, 48), torch.rand(64) / 64
    recorded = record(fn, [x], [w, s])
    assert recorded
    for isa in ("avx2", "avx512"):
        check(("case", fn, [x], [w, s]), isa, front=False)


def test_other_types_are_calls_of_aten() -> None:
    main, _ = definitions(int_mm, [bytes_of(4, 8).to(torch.uint8), bytes_of(8, 3)], [])
    assert not gemms(main)
    main, _ = definitions(int_mm, [bytes_of(4, 8), bytes_of(8, 3)], [], SCALAR)
    assert not gemms(main)
    main, _ = definitions(torch.mm, [bytes_of(4, 8), bytes_of(8, 3)], [])
    assert not gemms(main)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 4, 3), (3, 0, 5), (3, 4, 0)])
def test_no_elements(m: int, k: int, n: int) -> None:
    check(("empty", int_mm, [bytes_of(m, k), bytes_of(k, n)], []), "avx2", front=False)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_bytes_that_are_multiplied_in_two_ways_are_packed_in_two_ways(isa: str) -> None:
    def both(x: Tensor, q: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return int_mm(q, w.t()), F.linear(x, w.float())

    case: Case = ("both", both, [torch.randn(32, 48), bytes_of(32, 48)], [bytes_of(96, 48)])
    check(case, isa, front=False)
    panels = [each.b.buffer for each in gemms(definitions(both, case[2], case[3], host_isa(isa))[0])]
    assert len(panels) == len({each.name for each in panels}) == 2
