"""Epilogues: what is computed from the accumulator, and where it is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gemm_support import ISAS, buffer, c, caller, check, isa_named, plain_gemm, v

from lampwork.codegen.llvm.isa.x86 import host_flags, widest
from lampwork.codegen.llvm.templates.choose import GemmConfig
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.target import Target
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Buffer, Const, DType, Expr, Gemm, IndexValue, Load, Local, Op

_WIDTHS = ("scalar", "sse4", "avx2", "avx512")
ACC = Local("acc", "f32")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Target:
    if _WIDTHS.index(request.param) > _WIDTHS.index(widest(host_flags())):
        pytest.skip(f"this CPU has no {request.param}")
    return isa_named(request.param)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def op(name: str, *args: Expr, dtype: DType = "f32") -> Op:
    return Op(name, args, dtype)


def run(gemm: Gemm, isa: Target, config: GemmConfig | None = None, **tensors: torch.Tensor) -> None:
    function, _ = caller(emit_gemm(gemm, "f", isa, config), isa, tensors)
    assert function() == 0


# Whole tiles, a tail of rows, a tail of columns, several K blocks.
SHAPES = [(16, 96, 40), (13, 96, 40), (16, 50, 40), (9, 10, 300), (24, 48, 400)]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_bias_and_relu(isa: Target, m: int, n: int, k: int) -> None:
    a, b, bias, out = normal(m, k), normal(k, n, seed=1), normal(n, seed=2), torch.empty(m, n)
    value = op("maximum", op("add", ACC, Load(buffer("bias", bias), (v("n"),))), Const(0.0, "f32"))
    run(plain_gemm(a, b, out, value), isa, a=a, b=b, out=out, bias=bias)
    check(out, a, b, (a.double() @ b.double() + bias.double()).relu())


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_bias_gelu_and_residual(isa: Target, m: int, n: int, k: int) -> None:
    a, b, bias, rest, out = (
        normal(m, k),
        normal(k, n, seed=1),
        normal(n, seed=2),
        normal(m, n, seed=3),
        torch.empty(m, n),
    )
    x = op("add", ACC, Load(buffer("bias", bias), (v("n"),)))
    erf = op("erf", op("mul", x, Const(0.5**0.5, "f32")))
    gelu = op("mul", op("mul", x, Const(0.5, "f32")), op("add", erf, Const(1.0, "f32")))
    value = op("add", gelu, Load(buffer("rest", rest), (v("m"), v("n"))))
    run(plain_gemm(a, b, out, value), isa, a=a, b=b, out=out, bias=bias, rest=rest)
    exact = torch.nn.functional.gelu(a.double() @ b.double() + bias.double()) + rest.double()
    check(out, a, b, exact)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_per_row_scale_and_scalar(isa: Target, m: int, n: int, k: int) -> None:
    a, b, scale, out = normal(m, k), normal(k, n, seed=1), normal(m, seed=2), torch.empty(m, n)
    value = op("mul", op("mul", ACC, Const(0.125, "f32")), Load(buffer("scale", scale), (v("m"),)))
    run(plain_gemm(a, b, out, value), isa, a=a, b=b, out=out, scale=scale)
    check(out, a, b, a.double() @ b.double() * 0.125 * scale.double()[:, None])


@pytest.mark.parametrize("m", [16, 13])
@pytest.mark.parametrize(("heads", "width"), [(3, 64), (5, 20), (2, 48)])
def test_store_split_into_heads(isa: Target, m: int, heads: int, width: int) -> None:
    """out[n // width, m, n % width]: the permutation after a query projection, done by the store."""
    n, k = heads * width, 40
    a, b, bias, out = normal(m, k), normal(k, n, seed=1), normal(n, seed=2), torch.empty(heads, m, width)
    value = op("add", ACC, Load(buffer("bias", bias), (v("n"),)))
    gemm = plain_gemm(a, b, torch.empty(m, n), value)
    gemm = replace(gemm, out=buffer("out", out), index=(v("n") // width, v("m"), v("n") % width))
    run(gemm, isa, a=a, b=b, out=out, bias=bias)
    exact = (a.double() @ b.double() + bias.double()).view(m, heads, width).transpose(0, 1)
    check(out, a, b, exact)


def test_store_transposed(isa: Target) -> None:
    a, b, out = normal(13, 40), normal(40, 50, seed=1), torch.empty(50, 13)
    gemm = replace(plain_gemm(a, b, torch.empty(13, 50)), out=buffer("out", out), index=(v("n"), v("m")))
    run(gemm, isa, a=a, b=b, out=out)
    check(out.t(), a, b)


def test_causal_mask_from_positions(isa: Target) -> None:
    a, b, out = normal(2, 20, 16), normal(2, 16, 20, seed=1), torch.empty(2, 20, 20)
    visible = op("ge", IndexValue(v("m"), "i64"), IndexValue(v("n"), "i64"), dtype="bool")
    value = op("where", visible, op("mul", ACC, Const(0.25, "f32")), Const(float("-inf"), "f32"))
    run(plain_gemm(a, b, out, value), isa, a=a, b=b, out=out)
    exact = (a.double() @ b.double() * 0.25).masked_fill(~torch.ones(20, 20).tril().bool(), float("-inf"))
    assert torch.equal(out.isinf(), exact.isinf())
    check(out.nan_to_num(neginf=0), a, b, exact.nan_to_num(neginf=0))


def test_masked_load(isa: Target) -> None:
    """A bias that only the first 30 columns have."""
    a, b, bias, out = normal(10, 16), normal(16, 50, seed=1), normal(30, seed=2), torch.empty(10, 50)
    inside = op("lt", IndexValue(v("n"), "i64"), Const(30, "i64"), dtype="bool")
    value = op("add", ACC, Load(buffer("bias", bias), (v("n"),), inside, 0.5))
    run(plain_gemm(a, b, out, value), isa, a=a, b=b, out=out, bias=bias)
    extended = torch.cat([bias, torch.full((20,), 0.5)])
    check(out, a, b, a.double() @ b.double() + extended.double())


def test_wider_and_boolean_results(isa: Target) -> None:
    a, b = normal(13, 40), normal(40, 50, seed=1)
    wide = torch.empty(13, 50, dtype=torch.float64)
    gemm = plain_gemm(a, b, torch.empty(13, 50), op("cast", ACC, dtype="f64"))
    run(replace(gemm, out=buffer("out", wide)), isa, a=a, b=b, out=wide)
    check(wide.float(), a, b)
    positive = torch.empty(13, 50, dtype=torch.bool)
    out = replace(gemm.out, dtype="bool")
    run(
        replace(gemm, out=out, value=op("gt", ACC, Const(0.0, "f32"), dtype="bool")),
        isa,
        a=a,
        b=b,
        out=positive,
    )
    assert torch.equal(positive, a @ b > 0)


def test_constant_result(isa: Target) -> None:
    a, b, out = normal(13, 40), normal(40, 50, seed=1), torch.empty(13, 50)
    run(plain_gemm(a, b, out, Const(2.0, "f32")), isa, a=a, b=b, out=out)
    assert (out == 2).all()


@pytest.mark.parametrize("m", [1, 5, 8, 30])
def test_symbolic_sizes(isa: Target, m: int) -> None:
    """One kernel for every m, n, k and number of batches."""
    names = ("batches", "rows", "columns", "depth")
    batches, rows, columns, depth = (Index.sym(name) for name in names)
    one = c(1)
    gemm = Gemm(
        Buffer("out", "f32", (batches, rows, columns), (rows * columns, columns, one)),
        (Axis("b0", batches),),
        Axis("m", rows),
        Axis("n", columns),
        Axis("k", depth),
        Load(
            Buffer("a", "f32", (batches, rows, depth), (rows * depth, depth, one)), (v("b0"), v("m"), v("k"))
        ),
        Load(
            Buffer("b", "f32", (batches, depth, columns), (depth * columns, columns, one)),
            (v("b0"), v("k"), v("n")),
        ),
        (v("b0"), v("m"), v("n")),
        op("add", ACC, Load(Buffer("bias", "f32", (columns,), (one,)), (v("n"),))),
    )
    code = emit_gemm(gemm, "f", isa)
    assert set(code.sizes) == set(names)
    for n, k in ((1, 1), (20, 17), (100, 500)):
        a, b, bias, out = normal(2, m, k), normal(2, k, n, seed=1), normal(n, seed=2), torch.empty(2, m, n)
        sizes = dict(zip(names, (2, m, n, k)))
        function, _ = caller(code, isa, {"a": a, "b": b, "bias": bias, "out": out}, sizes)
        function()
        check(out, a, b, a.double() @ b.double() + bias.double())


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_result_over_the_residual(isa: Target, m: int, n: int, k: int) -> None:
    """The memory plan may give a result the memory of the residual: each element is read before it is written, once."""
    a, b, out = normal(m, k), normal(k, n, seed=1), normal(m, n, seed=2)
    exact = a.double() @ b.double() + out.double()
    value = op("add", ACC, Load(buffer("rest", out), (v("m"), v("n"))))
    run(plain_gemm(a, b, out, value), isa, a=a, b=b, out=out, rest=out)
    check(out, a, b, exact)


@pytest.mark.parametrize("m", [16, 13])
def test_addend_looked_up_in_a_table(isa: Target, m: int) -> None:
    """out = acc + table[ids[m], n]; an id out of range is reported, not read."""
    a, b, out = normal(m, 40), normal(40, 50, seed=1), torch.empty(m, 50)
    table = normal(7, 50, seed=2)
    ids = torch.randint(0, 7, (m,), generator=torch.Generator().manual_seed(3))
    row = Index.indirect(Load(buffer("ids", ids), (v("m"),)), 7)
    value = op("add", ACC, Load(buffer("table", table), (row, v("n"))))
    tensors = {"a": a, "b": b, "out": out, "ids": ids, "table": table}
    function, _ = caller(emit_gemm(plain_gemm(a, b, out, value), "f", isa), isa, tensors)
    assert function() == 0
    check(out, a, b, a.double() @ b.double() + table[ids].double())
    ids[m - 1] = 7
    assert function() == 1
    ids[m - 1] = -1
    assert function() == 1
