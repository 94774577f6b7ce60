"""Products that read a constant matrix as it lies, with the rows of A in lanes."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace

import pytest
import torch
from gemm_support import (
    ISAS,
    PAIRS,
    available,
    buffer,
    c,
    caller,
    check,
    isa_named,
    plain_gemm,
    v,
)
from instruction_sets import HERE
from torch import Tensor, nn

import lampwork
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.llvm.templates.prepack import prepack
from lampwork.codegen.llvm.templates.turned import emit_turned
from lampwork.codegen.llvm.templates.turned_plan import (
    choose_turned,
    last_panel,
    supports_turned,
    turned_config,
)
from lampwork.codegen.target import Target, TileShape
from lampwork.errors import CodegenError
from lampwork.loops.ir.addresses import dense_strides
from lampwork.loops.ir.nodes import Definition, Expr, Gemm, Load, Local, Op, PackB, Panels
from lampwork.loops.reference.evaluate import evaluate_definitions

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "24"))
_TURNED_ISAS = [isa for isa in (*ISAS, PAIRS) if isa != "scalar" and available(isa)]


def over_rows(gemm: Gemm, target: Target, vectors: int) -> tuple[PackB, Gemm]:
    """The Gemm with its rows in panels, and what packs them."""
    source = gemm.a.buffer
    columns, steps = vectors * target.sum_lanes(source.dtype), target.steps(source.dtype)
    m, k = (axis.extent.as_int() or 0 for axis in (gemm.m, gemm.k))
    shape = (c(-(-m // columns)), c(-(-k // steps)), c(columns * steps))
    out = Panels("rows", source.dtype, shape, dense_strides(shape), columns, steps)
    return PackB(out, (), gemm.m, gemm.k, gemm.a), replace(gemm, a=Load(out, gemm.a.index))


def run_turned(
    a: Tensor, w: Tensor, target: Target, vectors: int, value: Expr | None = None, **more: Tensor
) -> Tensor:
    """a @ w.T, whatever the cost model says."""
    out = torch.full((a.shape[0], w.shape[0]), 7.0, dtype=a.dtype)
    pack, gemm = over_rows(plain_gemm(a, w.t(), out, value), target, vectors)
    shape = [size.as_int() or 0 for size in pack.out.shape]
    rows = torch.full(shape, math.nan, dtype=a.dtype)
    caller(emit_pack(pack, "p", target), target, {"a": a, "rows": rows})[0]()
    run, extent = caller(emit_turned(gemm, "f", target), target, {"rows": rows, "b": w, "out": out, **more})
    # Items in any order and any grouping, as threads take them.
    run(extent // 2, extent)
    run(0, extent // 2)
    return out


SHAPES = [
    (1, 8, 1),
    (5, 9, 3),
    (16, 96, 40),
    (17, 97, 193),
    (32, 31, 200),
    (33, 200, 385),
    (48, 96, 64),
    (63, 100, 17),
    (70, 110, 96),
]


@pytest.mark.parametrize("isa", _TURNED_ISAS)
def test_numbers(isa: str) -> None:
    target, generator = isa_named(isa), torch.Generator().manual_seed(0)
    for m, n, k in SHAPES:
        for tile in target.turned_tiles:
            a, w = (torch.randn(rows, k, generator=generator) for rows in (m, n))
            check(run_turned(a, w, target, tile.vectors), a, w.t())


@pytest.mark.parametrize("isa", _TURNED_ISAS)
def test_double_precision(isa: str) -> None:
    a, w = torch.randn(21, 50, dtype=torch.float64), torch.randn(37, 50, dtype=torch.float64)
    check(run_turned(a, w, isa_named(isa), 2), a, w.t())


@pytest.mark.skipif(not available(PAIRS), reason="this CPU has no dot products of bfloat16")
def test_pairs_of_bfloat16() -> None:
    target = isa_named(PAIRS)
    for m, n, k in ((16, 96, 40), (40, 101, 770)):
        a, w = (torch.randn(rows, k).bfloat16() for rows in (m, n))
        value = Op("cast", (Local("acc", "f32"),), "bf16")
        got = run_turned(a, w, target, 2, value)
        exact = a.double() @ w.double().t()
        assert (got.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
        odd = plain_gemm(a[:, 1:], w[:, 1:].t(), torch.empty(m, n).bfloat16())
        assert supports_turned(plain_gemm(a, w.t(), torch.empty(m, n).bfloat16()), target)
        assert not supports_turned(odd, target)


@pytest.mark.parametrize("isa", _TURNED_ISAS)
def test_rows_and_matrices_lie_anywhere(isa: str) -> None:
    """At no alignment, with gaps between rows, rows of A along m."""
    target = isa_named(isa)
    a, w = torch.randn(20 * 50 + 1)[1:].view(20, 50), torch.randn(99, 60)[:, 3:53]
    check(run_turned(a, w, target, 2), a, w.t())
    a = torch.randn(50, 20).t()
    check(run_turned(a, w, target, 1), a, w.t())


@pytest.mark.parametrize("isa", _TURNED_ISAS)
def test_epilogue(isa: str) -> None:
    """Of few operations and of many, with what it reads at any row and column."""
    target = isa_named(isa)
    a, w, bias, rest = torch.randn(37, 70), torch.randn(101, 70), torch.randn(101), torch.randn(37, 101)
    total = Op("add", (Local("acc", "f32"), Load(buffer("bias", bias), (v("n"),))), "f32")
    total = Op("add", (total, Load(buffer("rest", rest), (v("m"), v("n")))), "f32")
    value = Op(
        "exp", (Op("neg", (Op("maximum", (total, Op("neg", (total,), "f32")), "f32"),), "f32"),), "f32"
    )
    exact = a.double() @ w.double().t() + bias + rest
    got = run_turned(a, w, target, 2, total, bias=bias, rest=rest)
    assert (got - exact).abs().max() < 1e-4
    got = run_turned(a, w, target, 2, value, bias=bias, rest=rest)
    assert (got - (-exact.abs()).exp()).abs().max() < 1e-4


def test_what_is_not_finite_stays_in_its_row_and_column() -> None:
    target = isa_named(HERE[-1])
    a, w = torch.randn(21, 200), torch.randn(97, 200)
    a[3, 199], a[20, 0], w[96, 7], w[5, 150] = math.nan, math.inf, -math.inf, math.nan
    got, eager = run_turned(a, w, target, 2), a @ w.t()
    assert torch.equal(got.isnan(), eager.isnan())
    assert torch.equal(got.isposinf(), eager.isposinf()) and torch.equal(got.isneginf(), eager.isneginf())


def test_last_panels() -> None:
    """Whole ones, those of some vectors, of half a one."""
    assert last_panel(128, 2, 16) == (0, 16)
    assert last_panel(197, 2, 16) == (1, 8)
    assert last_panel(50, 3, 16) == (1, 8)
    assert last_panel(52, 2, 16) == (2, 16)
    assert last_panel(5, 2, 4) == (2, 4)


def test_when_it_is_chosen() -> None:
    """Where lanes are full, and where the copy of B would be large; not for many rows, nor for small layers."""
    target = isa_named("avx512")

    def chosen(m: int, n: int = 768, k: int = 768, **fields: int) -> bool:
        gemm = plain_gemm(torch.empty(m, k), torch.empty(n, k).t(), torch.empty(m, n))
        return choose_turned(gemm, replace(target, **fields)) is not None  # type: ignore[arg-type]

    rows = (1, 4, 5, 8, 12, 16, 20, 32, 48, 50, 128, 197, 256, 1024)
    assert [m for m in rows if chosen(m)] == [16, 32, 48, 50, 128, 197, 256]
    assert not chosen(32, n=64)
    assert not chosen(20) and chosen(20, packed_bytes=1 << 20)
    assert not chosen(8) and chosen(8, packed_bytes=1 << 20)
    assert not chosen(32, turned_rows=0)


def linear(name: str, x: str, weight: str, n: int = 768) -> Gemm:
    gemm = plain_gemm(torch.empty(32, 512), torch.empty(n, 512).t(), torch.empty(32, n))
    return replace(
        gemm,
        out=replace(gemm.out, name=name),
        a=Load(replace(gemm.a.buffer, name=x), gemm.a.index),
        b=Load(replace(gemm.b.buffer, name=weight), gemm.b.index),
    )


def test_rows_are_packed_once_for_all_that_read_them() -> None:
    products: list[Definition] = [linear("q", "x", "wq"), linear("k", "x", "wk"), linear("y", "z", "wy")]
    main, constant = prepack(products, [], frozenset(("wq", "wk", "wy")), isa_named("avx512"))
    assert constant == []
    assert [type(each).__name__ for each in main] == ["PackB", "Gemm", "Gemm", "PackB", "Gemm"]
    _, q, k, _, y = main
    assert isinstance(q, Gemm) and isinstance(k, Gemm) and isinstance(y, Gemm)
    assert q.a.buffer == k.a.buffer != y.a.buffer and q.b == products[0].b  # type: ignore[union-attr]


def test_definitions_over_rows_in_panels_mean_the_same() -> None:
    x, w = torch.randn(32, 512), torch.randn(768, 512)
    main, _ = prepack([linear("y", "x", "w")], [], frozenset("w"), isa_named("avx512"))
    arrays = evaluate_definitions(main, {"x": x.numpy(), "w": w.t().numpy()})
    assert abs(arrays["y"] - (x.double() @ w.double().t()).numpy()).max() < 1e-3


def test_other_panels_are_refused() -> None:
    target = isa_named("avx512")
    gemm = plain_gemm(torch.empty(32, 40), torch.empty(100, 40).t(), torch.empty(32, 100))
    with pytest.raises(CodegenError, match="are not in panels"):
        emit_turned(gemm, "f", target)
    _, over = over_rows(gemm, target, 2)
    with pytest.raises(CodegenError, match="the tile has 3 vectors"):
        emit_turned(over, "f", target, replace(turned_config(over, target, 2), vectors=3))
    few = replace(target, turned_tiles=(TileShape(2, 101),))
    with pytest.raises(CodegenError, match="does not fit 100 columns"):
        emit_turned(over, "f", few)


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_change_in_place(threads: int) -> None:
    """Nothing has to be packed again: the weight is read where it lies."""
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).eval().requires_grad_(False)
    x, before = torch.randn(32, 256), torch.get_num_threads()
    ours = lampwork.compile(net, options={"strict": True})
    torch.set_num_threads(threads)
    try:
        for factor in (1.0, 1.5, -0.5):
            for parameter in net.parameters():
                parameter.mul_(factor)
            torch.testing.assert_close(ours(x), net(x), rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)
    if HERE[-1] == "avx512":
        assert "pack " in ours.stages.definitions and ".packed" not in ours.stages.definitions


def test_rows_that_are_written_to_in_place_are_packed_again() -> None:
    layer = nn.Linear(256, 384).eval().requires_grad_(False)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        first = layer(x)
        x.mul_(2)
        return first, layer(x)

    ours = lampwork.compile(program, options={"strict": True})
    x = torch.randn(32, 256)
    for got, wanted in zip(ours(x.clone()), program(x.clone()), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


class _Block(nn.Module):
    """Products, some of one input, with an epilogue of any kind."""

    def __init__(self, pick: random.Random, k: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.n = pick.choice((96, 100, 128, 200, 384))
        self.first = nn.Linear(k, self.n, bias=pick.random() < 0.6, dtype=dtype)
        self.second = nn.Linear(k, self.n, bias=pick.random() < 0.6, dtype=dtype)
        self.last = nn.Linear(self.n, pick.choice((96, 112, 320)), dtype=dtype)
        self.kind = pick.choice(("gated", "sum", "heads", "one"))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if self.kind == "gated":
            y = torch.nn.functional.silu(y) * self.second(x)
        elif self.kind == "sum":
            y = torch.relu(y + self.second(x))
        elif self.kind == "heads":
            y = y.unflatten(-1, (4, -1)).transpose(-2, -3).contiguous().transpose(-2, -3).flatten(-2)
        return self.last(y)


@pytest.mark.parametrize("seed", range(_COUNT))
def test_random_blocks(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    k, dtype = pick.choice((64, 100, 193, 256, 512)), pick.choice((torch.float32,) * 3 + (torch.float64,))
    net = _Block(pick, k, dtype).eval().requires_grad_(False)
    m = pick.choice((5, 8, 12, 16, 17, 20, 24, 32, 40, 48, 64, 72, 96, 104, 128))
    x = torch.randn(m, k, dtype=dtype)
    if pick.random() < 0.3:
        x = x.unflatten(0, (-1, 4)) if m % 4 == 0 else x
    if pick.random() < 0.2:
        x = torch.randn(k, *x.shape[:-1], dtype=dtype).movedim(0, -1)
    ours = lampwork.compile(net, options={"strict": True, "isa": pick.choice(HERE)})
    wide = net.double()(x.double()) if dtype == torch.float64 else None
    got = ours(x)
    if wide is None:
        eager = net(x)
        wide = net.double()(x.double())
        assert (got - wide).abs().max() <= 2 * (eager - wide).abs().max() + 1e-5
        return
    torch.testing.assert_close(got, wide, rtol=1e-10, atol=1e-10)
