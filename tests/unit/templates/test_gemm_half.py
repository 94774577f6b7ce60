"""Matrix products of bfloat16 and float16 against float64: dot product instructions, and widening to float32."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_support import (
    ISAS,
    PAIRS,
    available,
    buffer,
    c,
    caller,
    evaluate_index,
    isa_named,
    panels,
    plain_gemm,
    v,
)

from lampwork.codegen.llvm.templates.choose import GemmConfig, Likely, choose_config
from lampwork.codegen.llvm.templates.gemm import emit_gemm, supports
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.llvm.templates.plan import plan_gemm
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Const, Expr, Gemm, Load, Local, Op, PackB
from lampwork.loops.reference.evaluate import evaluate_definitions

HALVES = (torch.bfloat16, torch.float16)
NAMES = (*ISAS, PAIRS)
SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 48, 64, 65, 100)
CANARY = 64


@pytest.fixture(params=NAMES)
def isa(request: pytest.FixtureRequest) -> Target:
    if not available(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    return isa_named(request.param)


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def fenced(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of the same strides with nan right before and right behind what it covers; and all of that memory."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = torch.full((span + 2 * CANARY,), float("nan"), dtype=tensor.dtype)
    inside = memory[CANARY : CANARY + span].as_strided(tensor.shape, tensor.stride())
    once = tuple(slice(0, 1 if stride == 0 else None) for stride in tensor.stride())
    inside[once].copy_(tensor[once])
    return inside, memory


def assert_fence_stands(memory: torch.Tensor) -> None:
    assert memory[:CANARY].isnan().all() and memory[-CANARY:].isnan().all()


def packed_form(
    gemm: Gemm, b: torch.Tensor, isa: Target, vectors: int
) -> tuple[Gemm, torch.Tensor, torch.Tensor]:
    """The Gemm over a packed B, the tensor of that, and the memory around it."""
    dtype = gemm.b.buffer.dtype
    steps, width = isa.steps(dtype), vectors * isa.lanes(dtype)
    *batch, k, n = b.shape
    out, memory = fenced(torch.zeros(*batch, -(-n // width), -(-k // steps), width * steps, dtype=b.dtype))
    definition = PackB(panels("packed", out, steps), gemm.batch, Axis("n", c(n)), Axis("k", c(k)), gemm.b)
    out.fill_(float("nan"))
    run, _ = caller(emit_pack(definition, "p", isa), isa, {"b": b, "packed": out})
    assert run() == 0
    return replace(gemm, b=Load(definition.out, gemm.b.index)), out, memory


def multiply(
    a: torch.Tensor, b: torch.Tensor, isa: Target, *, packed: bool = False, config: GemmConfig | None = None
) -> torch.Tensor:
    """a @ b by the template, with canaries around all buffers."""
    (a, _), (b, _) = fenced(a), fenced(b)
    out, memory = fenced(torch.zeros(*a.shape[:-1], b.shape[-1], dtype=a.dtype))
    gemm, tensors = plain_gemm(a, b, out), {"a": a, "b": b, "out": out}
    around = None
    if packed:
        gemm, tensors["packed"], around = packed_form(gemm, b, isa, isa.tiles[0].vectors)
    assert supports(gemm, isa)
    run, _ = caller(emit_gemm(gemm, "f", isa, config), isa, tensors)
    assert run() == 0
    assert_fence_stands(memory)
    if around is not None:
        assert_fence_stands(around)
    return out


def check(actual: torch.Tensor, exact: torch.Tensor) -> None:
    """One rounding to the half type, and what sums in float32 may be off by."""
    unit = torch.finfo(actual.dtype).eps / 2
    error = (actual.double() - exact).abs()
    allowed = exact.abs() * unit * 1.01 + 1e-5 * max(exact.abs().max().item(), 1.0)
    assert (error <= allowed).all(), f"error {(error - allowed).max().item()} more than allowed"


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.double() @ b.double()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (1, 10, 64),
        (1, 70, 131),
        (2, 5, 33),
        (4, 64, 200),
        (3, 50, 17),
        (7, 10, 1),
        (5, 3, 2),
        (8, 128, 64),
        (13, 50, 201),
        (65, 97, 70),
        (20, 49, 771),
    ],
)
def test_sizes_and_layouts(isa: Target, dtype: torch.dtype, m: int, n: int, k: int) -> None:
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    exact = product(a, b)
    columns = b.t().contiguous().t()
    check(multiply(a, b, isa), exact)
    check(multiply(a, columns, isa), exact)
    check(multiply(a, b, isa, packed=True), exact)
    check(multiply(a, columns, isa, packed=True), exact)
    check(multiply(a.t().contiguous().t(), columns, isa), exact)


@pytest.mark.parametrize("dtype", HALVES)
def test_network_sizes(isa: Target, dtype: torch.dtype) -> None:
    if isa.vector_bytes < 32:
        pytest.skip("slow, and no other code than at smaller sizes")
    for m, n, k in ((128, 768, 768), (16, 384, 3072), (600, 48, 96)):
        a, b = normal(m, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1).t()
        exact = product(a, b)
        check(multiply(a, b, isa, packed=True), exact)
        check(multiply(a, b, isa), exact)


@pytest.mark.parametrize("dtype", HALVES)
def test_batches(isa: Target, dtype: torch.dtype) -> None:
    for k in (40, 41):
        a, b = normal(2, 3, 17, k, dtype=dtype), normal(2, 3, k, 21, dtype=dtype, seed=1)
        exact = product(a, b)
        check(multiply(a, b, isa), exact)
        check(multiply(a, b.transpose(2, 3).contiguous().transpose(2, 3), isa), exact)
        check(multiply(a, b, isa, packed=True), exact)


@pytest.mark.parametrize("dtype", HALVES)
def test_strided_operands(isa: Target, dtype: torch.dtype) -> None:
    b = normal(30, 20, dtype=dtype, seed=1)
    for a in (
        normal(25, 90, dtype=dtype)[:, ::3],
        normal(50, 30, dtype=dtype)[::2],
        normal(25, 61, dtype=dtype)[:, 1:31],
        normal(1, 30, dtype=dtype).expand(25, 30),
    ):
        check(multiply(a, b, isa), product(a, b))
    a = normal(25, 30, dtype=dtype)
    for b in (
        normal(30, 60, dtype=dtype, seed=1)[:, ::2],
        normal(60, 20, dtype=dtype, seed=1)[::2],
        normal(20, 63, dtype=dtype, seed=1)[:, 1:31].t(),
        normal(30, 1, dtype=dtype, seed=1).expand(30, 20),
    ):
        check(multiply(a, b, isa), product(a, b))
        check(multiply(a, b, isa, packed=True), product(a, b))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [16, 32, 6, 5])
def test_left_seen_through_merged_dimensions(isa: Target, dtype: torch.dtype, size: int) -> None:
    """A is [heads, tokens, size] read as [tokens, heads * size]: k // size and k % size in its index."""
    heads = normal(15, 21, size, dtype=dtype)
    a = heads.permute(1, 0, 2).reshape(21, 15 * size)
    b = normal(15 * size, 30, dtype=dtype, seed=1)
    out = torch.zeros(21, 30, dtype=dtype)
    gemm = plain_gemm(a, b, out)
    load = Load(buffer("a", heads), (v("k") // size, v("m"), v("k") % size))
    for right in (b, b.t().contiguous().t()):
        changed = replace(gemm, a=load, b=Load(buffer("b", right), gemm.b.index))
        assert supports(changed, isa)
        run, _ = caller(emit_gemm(changed, "f", isa), isa, {"a": heads, "b": right, "out": out.fill_(0)})
        run()
        check(out, product(a, b))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("k", [1, 7, 64, 777])
def test_nan_and_infinity(isa: Target, dtype: torch.dtype, k: int) -> None:
    """Each number at a place of its own, so that one result does not hide another."""
    for m in (2, 20):
        for packed in (False, True):
            a, b = normal(m, k, dtype=dtype), normal(50, k, dtype=dtype, seed=1).t().clone()
            a[0, 0], a[1, k - 1], b[k - 1, 3], b[0, 7] = float("inf"), float("nan"), -float("inf"), 0.0
            expected = product(a, b).to(dtype)
            found = multiply(a, b, isa, packed=packed)
            assert torch.equal(found.isnan(), expected.isnan())
            assert torch.equal(found.isposinf(), expected.isposinf())
            assert torch.equal(found.isneginf(), expected.isneginf())


@pytest.mark.parametrize("dtype", HALVES)
def test_overflow_is_infinite(isa: Target, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    a, b = torch.full((9, 33), largest, dtype=dtype), torch.full((33, 20), 2.0, dtype=dtype)
    assert multiply(a, b, isa).isposinf().all()
    assert multiply(a, -b, isa).isneginf().all()


def test_subnormal_floats_of_sixteen_bits(isa: Target) -> None:
    """2 ** -24 is the smallest float16: normal in float32, where it is multiplied."""
    a, b = torch.full((9, 32), 2.0**-24, dtype=torch.float16), torch.full((32, 20), 3.0, dtype=torch.float16)
    check(multiply(a, b, isa) * 2.0**10, product(a, b) * 2.0**10)
    assert (multiply(a, b, isa) == 96 * 2.0**-24).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("mode", ["rows", "columns", "packed"])
def test_any_number_of_rows(isa: Target, dtype: torch.dtype, mode: str) -> None:
    """M is a symbol: one kernel for all, chosen for 128 rows."""
    for k in (37, 64):
        b = normal(k, 70, dtype=dtype, seed=1)
        if mode == "columns":
            b = b.t().contiguous().t()
        sample = normal(40, k, dtype=dtype)
        gemm = plain_gemm(sample, b, torch.zeros(40, 70, dtype=dtype))
        rows = Index.sym("s")
        gemm = replace(
            gemm,
            m=Axis("m", rows),
            a=replace(gemm.a, buffer=replace(gemm.a.buffer, shape=(rows, c(k)))),
            out=replace(gemm.out, shape=(rows, c(70))),
        )
        tensors = {"b": b}
        if mode == "packed":
            gemm, tensors["packed"], _ = packed_form(gemm, b, isa, isa.tiles[0].vectors)
        code = emit_gemm(gemm, "f", isa, likely=Likely(m=128))
        for m in (1, 2, 3, 7, 8, 9, 40):
            a, _ = fenced(sample[:m])
            out, memory = fenced(torch.zeros(m, 70, dtype=dtype))
            run, _ = caller(code, isa, {**tensors, "a": a, "out": out}, {"s": m})
            run(0, evaluate_index(code.extent, {"s": m}))
            check(out, product(a, b))
            assert_fence_stands(memory)


@pytest.mark.parametrize("dtype", HALVES)
def test_any_length_of_sums(isa: Target, dtype: torch.dtype) -> None:
    """K is a symbol, odd or even, shorter and longer than a block."""
    size = Index.sym("s")
    sample = plain_gemm(
        torch.zeros(20, 8, dtype=dtype), torch.zeros(8, 50, dtype=dtype), torch.zeros(20, 50, dtype=dtype)
    )
    gemm = replace(
        sample,
        k=Axis("k", size),
        a=replace(sample.a, buffer=replace(sample.a.buffer, shape=(c(20), size), strides=(size, c(1)))),
        b=replace(sample.b, buffer=replace(sample.b.buffer, shape=(size, c(50)))),
    )
    code = emit_gemm(gemm, "f", isa)
    for k in (1, 2, 63, 192, 193, 384, 385, 1000):
        (a, _), (b, _) = fenced(normal(20, k, dtype=dtype)), fenced(normal(k, 50, dtype=dtype, seed=1))
        out, memory = fenced(torch.zeros(20, 50, dtype=dtype))
        run, extent = caller(code, isa, {"a": a, "b": b, "out": out}, {"s": k})
        run(0, extent)
        check(out, product(a, b))
        assert_fence_stands(memory)


@pytest.mark.parametrize("k", [8, 9])
def test_the_reference_packs_and_multiplies_alike(isa: Target, k: int) -> None:
    a, b = normal(9, k, dtype=torch.float16), normal(k, 50, dtype=torch.float16, seed=1)
    gemm = plain_gemm(a, b, torch.zeros(9, 50, dtype=torch.float16))
    for steps in (1, 2):
        shape = (-(-50 // 16), -(-k // steps), 16 * steps)
        target = panels("packed", torch.zeros(shape, dtype=torch.float16), steps)
        pack = PackB(target, (), Axis("n", c(50)), Axis("k", c(k)), gemm.b)
        packed = replace(gemm, b=Load(target, gemm.b.index))
        arrays = evaluate_definitions([pack, packed], {"a": a.numpy(), "b": b.numpy()})
        check(torch.from_numpy(arrays["out"]), product(a, b))
        rows = arrays["packed"].reshape(*shape[:-1], 16, steps)
        for row, column in ((0, 0), (k - 1, 49), (3, 17)):
            place = (column // 16, row // steps, column % 16, row % steps)
            assert rows[place] == b[row, column]
        if isa.steps("f16") == steps:
            made = torch.zeros(shape, dtype=torch.float16)
            run, _ = caller(emit_pack(pack, "p", isa), isa, {"b": b, "packed": made})
            run()
            if isa.lanes("f16") <= 16:
                assert np.array_equal(made.numpy(), arrays["packed"])


def test_a_panel_of_other_steps_is_refused() -> None:
    isa = isa_named("avx512")
    a, b = normal(9, 8, dtype=torch.bfloat16), normal(8, 48, dtype=torch.bfloat16)
    gemm = plain_gemm(a, b, torch.zeros(9, 48, dtype=torch.bfloat16))
    pairs = panels("packed", torch.zeros(1, 4, 96, dtype=torch.bfloat16), 2)
    with pytest.raises(CodegenError, match="B is packed in steps of 2, the tile takes 1"):
        emit_gemm(replace(gemm, b=Load(pairs, gemm.b.index)), "f", isa)


def matrix(pick: random.Random, batch: tuple[int, ...], rows: int, columns: int, dtype: torch.dtype):
    kind = pick.choice(("rows", "rows", "columns", "columns", "every other", "inside", "interleaved"))
    seed = pick.randint(0, 1000)
    if kind == "columns":
        return normal(*batch, columns, rows, dtype=dtype, seed=seed).transpose(-1, -2)
    if kind == "every other":
        return normal(*batch, rows, 2 * columns, dtype=dtype, seed=seed)[..., ::2]
    if kind == "inside":
        whole = normal(*batch, rows + 3, columns + 5, dtype=dtype, seed=seed)
        return whole[..., 1 : rows + 1, 2 : columns + 2]
    if kind == "interleaved" and len(batch) == 2:
        return normal(batch[0], rows, batch[1], columns, dtype=dtype, seed=seed).transpose(1, 2)
    return normal(*batch, rows, columns, dtype=dtype, seed=seed)


def tile(pick: random.Random, gemm: Gemm, isa: Target) -> GemmConfig | None:
    plan = plan_gemm(gemm, isa)
    if pick.random() < 0.5 or plan.mode == "dot":
        return None
    m, n, k = (size.as_int() for size in (gemm.m.extent, gemm.n.extent, plan.words))
    assert k is not None
    chosen = choose_config(m, n, k, gemm.packed, 0, isa, gemm.a.buffer.dtype)
    rows = pick.randint(1, chosen.rows)
    k_block = pick.choice([0, *(block for block in (32, 64, 96) if block < k)])
    return replace(
        chosen, rows=rows, unroll=pick.choice((1, 2, 4)), k_block=k_block, m_block=pick.choice((0, rows * 3))
    )


def epilogue(pick: random.Random, exact: torch.Tensor, tensors: Mapping[str, torch.Tensor], dtype: str):
    """An expression in float32 over acc, and what it gives for the exact product."""
    acc = Local("acc", "f32")
    kind = pick.choice(("none", "rounded", "bias", "relu"))
    if kind == "rounded":
        return Op("cast", (acc,), dtype), exact
    if kind == "bias":
        bias = Op("cast", (Load(buffer("bias", tensors["bias"]), (v("n"),)),), "f32")
        return Op("cast", (Op("add", (acc, bias), "f32"),), dtype), exact + tensors["bias"].double()
    if kind == "relu":
        return Op("maximum", (acc, Const(0.0, "f32")), "f32"), exact.relu()
    return acc, exact


@pytest.mark.parametrize("seed", range(80))
def test_random_products(seed: int) -> None:
    pick = random.Random(seed)
    isa = isa_named(pick.choice([name for name in (*NAMES, PAIRS) if available(name)]))
    dtype = pick.choice((torch.bfloat16, torch.bfloat16, torch.float16))
    m, n, k = pick.choice(SIZES), pick.choice(SIZES), pick.choice((*SIZES, 200, 385, 770))
    batch = pick.choice(((), (), (2,), (2, 3)))
    (a, _), (b, _) = fenced(matrix(pick, batch, m, k, dtype)), fenced(matrix(pick, batch, k, n, dtype))
    out, memory = fenced(torch.zeros(*batch, m, n, dtype=dtype))
    tensors = {"a": a, "b": b, "out": out, "bias": normal(n, dtype=dtype)}
    name = "bf16" if dtype == torch.bfloat16 else "f16"
    value: Expr
    value, exact = epilogue(pick, product(a, b), tensors, name)
    gemm = plain_gemm(a, b, out, value)
    if pick.random() < 0.5:
        vectors = pick.choice(sorted(shape.vectors for shape in isa.tiles))
        gemm, tensors["packed"], _ = packed_form(gemm, b, isa, vectors)
    run, extent = caller(emit_gemm(gemm, "f", isa, tile(pick, gemm, isa)), isa, tensors)
    cuts = sorted(pick.randint(0, extent) for _ in range(pick.randint(0, 2)))
    for begin, end in zip([0, *cuts], [*cuts, extent]):
        assert run(begin, end) == 0
    check(out, exact)
    assert_fence_stands(memory)
