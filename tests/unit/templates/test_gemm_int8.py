"""Matrix products of int8, whose sums are exact, and of float32 by int8, on every instruction set."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from gemm_support import buffer, c, caller, panels, plain_gemm, v

from lampwork.codegen.llvm.isa.x86 import describe, host_flags, host_isa, widest
from lampwork.codegen.llvm.templates.choose import GemmConfig, Likely, choose_config
from lampwork.codegen.llvm.templates.gemm import emit_gemm, supports
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.llvm.templates.plan import plan_gemm
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Buffer, Const, Expr, Gemm, Load, Local, Op, PackB
from lampwork.loops.reference.evaluate import evaluate_definitions

VNNI = "avx512 with vnni"
NAMES = ("sse4", "avx2", "avx512", VNNI)
FENCE = 64
SIZES = (1, 2, 3, 4, 5, 8, 9, 13, 16, 17, 31, 48, 49, 64, 65, 100)
SEEDS = range(int(os.environ.get("LAMPWORK_FUZZ", "30")))


def _available(name: str) -> bool:
    if name == VNNI:
        return "avx512_vnni" in host_flags() and _available("avx512")
    return NAMES.index(name) <= NAMES.index(widest(host_flags()))


def _target(name: str) -> Target:
    return host_isa("avx512") if name == VNNI else describe(name)  # type: ignore[arg-type]


AVAILABLE = [name for name in NAMES if _available(name)]


@pytest.fixture(params=NAMES)
def isa(request: pytest.FixtureRequest) -> Target:
    if not _available(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    return _target(request.param)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """All of int8, with more of its ends than chance has."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
    ends = torch.randint(0, 4, shape, generator=generator)
    return found.masked_fill(ends == 0, -128).masked_fill(ends == 1, 127)


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(a.numpy().astype(np.int64) @ b.numpy().astype(np.int64)).int()


def fenced(tensor: torch.Tensor, shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of the same strides `shift` bytes past an aligned address, and the memory around it, filled with 99."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = torch.full((span + 2 * FENCE + shift,), 99, dtype=tensor.dtype)
    inside = memory[FENCE + shift : FENCE + shift + span].as_strided(tensor.shape, tensor.stride())
    inside.copy_(tensor)
    return inside, memory


def stands(memory: torch.Tensor, shift: int = 0) -> bool:
    return bool((memory[: FENCE + shift] == 99).all() and (memory[-FENCE:] == 99).all())


def packed_form(
    gemm: Gemm, b: torch.Tensor, isa: Target, vectors: int
) -> tuple[Gemm, PackB, torch.Tensor, torch.Tensor]:
    """The Gemm over a packed B, its packing, and the panels with the memory around them."""
    dot = isa.dot(gemm.a.buffer.dtype)
    steps, offset = (dot.steps, dot.offset) if dot is not None else (1, 0)
    width = vectors * isa.sum_lanes(gemm.a.buffer.dtype)
    *batch, k, n = b.shape
    rows = -(-k // steps) + (1 if offset else 0)
    out, memory = fenced(torch.zeros(*batch, -(-n // width), rows, width * steps, dtype=b.dtype))
    pack = PackB(panels("packed", out, steps, offset), gemm.batch, Axis("n", c(n)), Axis("k", c(k)), gemm.b)
    run, _ = caller(emit_pack(pack, "p", isa), isa, {"b": b, "packed": out})
    assert run() == 0
    assert stands(memory)
    return replace(gemm, b=Load(pack.out, gemm.b.index)), pack, out, memory


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    isa: Target,
    *,
    vectors: int = 0,
    config: GemmConfig | None = None,
    shift: int = 0,
) -> torch.Tensor:
    """a @ b by the template, packed in panels of so many vectors, with fences around all buffers."""
    (a, _), (b, _) = fenced(a, shift), fenced(b, shift)
    sums = torch.int32 if a.dtype is torch.int8 else a.dtype
    out, memory = fenced(torch.zeros(*a.shape[:-1], b.shape[-1], dtype=sums))
    gemm, tensors = plain_gemm(a, b, out), {"a": a, "b": b, "out": out}
    if vectors:
        gemm, _, tensors["packed"], _ = packed_form(gemm, b, isa, vectors)
    assert supports(gemm, isa)
    run, _ = caller(emit_gemm(gemm, "f", isa, config), isa, tensors)
    assert run() == 0
    assert stands(memory)
    return out


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (1, 10, 64), (2, 5, 33), (3, 50, 17), (7, 10, 1), (5, 3, 2), (9, 49, 771), (13, 100, 66)],
)
def test_sizes_and_layouts(isa: Target, m: int, n: int, k: int) -> None:
    a, b = numbers(m, k), numbers(k, n, seed=1)
    wanted = exact(a, b)
    columns = b.t().contiguous().t()
    for right in (b, columns):
        assert multiply(a, right, isa).equal(wanted)
        assert multiply(a, right, isa, vectors=isa.tiles[0].vectors).equal(wanted)
    assert multiply(a.t().contiguous().t(), columns, isa, vectors=1).equal(wanted)


def test_nothing_saturates(isa: Target) -> None:
    """Pairs of products of two ends do not fit an int16: 2 * 128 * 128, and 2 * 255 * 127 of an uint8."""
    for left in (-128, 127):
        for right in (-128, 127):
            a = torch.full((9, 1030), left, dtype=torch.int8)
            b = torch.full((1030, 33), right, dtype=torch.int8)
            assert multiply(a, b, isa, vectors=1).equal(exact(a, b))
            assert multiply(a, b, isa).equal(exact(a, b))


def test_long_sums_are_cut_into_blocks(isa: Target) -> None:
    """Where rows of A wait in scratch; the sums begin at B's columns' in the first block only."""
    a, b = numbers(5, 20003), numbers(20003, 7, seed=1)
    wanted = exact(a, b)
    assert multiply(a, b, isa, vectors=1).equal(wanted)
    assert multiply(a, b, isa).equal(wanted)


def test_sums_wrap_as_those_of_int32(isa: Target) -> None:
    depth = 2**17 + 4
    a, b = (torch.full(shape, -128, dtype=torch.int8) for shape in ((1, depth), (depth, 1)))
    assert multiply(a, b, isa, vectors=1).item() == depth * 128 * 128 - 2**32


@pytest.mark.parametrize("rows", [1, 3, 8, 20])
def test_an_open_number_of_rows(isa: Target, rows: int) -> None:
    a, b = numbers(rows, 40), numbers(40, 50, seed=1)
    out = torch.zeros(rows, 50, dtype=torch.int32)
    gemm = plain_gemm(a, b, out)
    gemm, _, packed, _ = packed_form(gemm, b, isa, isa.tiles[0].vectors)
    m = Index.sym("s0")
    line = Buffer("a", "i8", (m, c(40)), (c(40), c(1)))
    wide = Buffer("out", "i32", (m, c(50)), (c(50), c(1)))
    gemm = replace(gemm, m=Axis("m", m), a=Load(line, gemm.a.index), out=wide)
    code = emit_gemm(gemm, "f", isa, likely=Likely(m=8))
    run, _ = caller(code, isa, {"a": a, "packed": packed, "out": out}, {"s0": rows})
    assert run() == 0
    assert out.equal(exact(a, b))


def test_the_epilogue_makes_floats_of_sums(isa: Target) -> None:
    """acc * row(m) * column(n) + bias(n), and relu, rounded as torch does."""
    a, b = numbers(21, 70), numbers(70, 50, seed=1)
    row, column, bias = torch.rand(21, 1), torch.rand(50), torch.randn(50)
    out = torch.zeros(21, 50)
    tensors = {"a": a, "b": b, "out": out, "row": row, "column": column, "bias": bias}
    value: Expr = Op("cast", (Local("acc", "i32"),), "f32")
    value = Op("mul", (value, Load(buffer("row", row), (v("m"), c(0)))), "f32")
    value = Op("mul", (value, Load(buffer("column", column), (v("n"),))), "f32")
    value = Op("add", (value, Load(buffer("bias", bias), (v("n"),))), "f32")
    value = Op("maximum", (value, Const(0.0, "f32")), "f32")
    gemm, _, tensors["packed"], _ = packed_form(plain_gemm(a, b, out, value), b, isa, 1)
    run, _ = caller(emit_gemm(gemm, "f", isa), isa, tensors)
    assert run() == 0
    assert out.equal((exact(a, b).float() * row * column + bias).relu())


def test_the_reference_packs_and_multiplies_alike(isa: Target) -> None:
    a, b = numbers(2, 5, 19), numbers(2, 19, 21, seed=1)
    out = torch.zeros(2, 5, 21, dtype=torch.int32)
    gemm, pack, packed, _ = packed_form(plain_gemm(a, b, out), b, isa, 1)
    found = evaluate_definitions([pack, gemm], {"a": a.numpy(), "b": b.numpy()})
    assert np.array_equal(found["packed"], packed.numpy())
    assert np.array_equal(found["out"], np.stack([exact(x, y).numpy() for x, y in zip(a, b, strict=True)]))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 70, 131), (3, 65, 64), (5, 10, 33), (33, 50, 401)])
def test_float32_by_int8(isa: Target, m: int, n: int, k: int) -> None:
    """B is widened exactly: the error is that of float32."""
    a = torch.randn(m, k, generator=torch.Generator().manual_seed(0))
    b = numbers(k, n, seed=1)
    wanted = a.double() @ b.double()
    allowed = 2 * (a @ b.float() - wanted).abs().max() + 1e-6 * wanted.abs().max()
    for right in (b, b.t().contiguous().t()):
        for vectors in (0, 1, isa.tiles[0].vectors):
            assert ((multiply(a, right, isa, vectors=vectors) - wanted).abs() <= allowed).all()


def test_panels_for_another_offset_are_refused() -> None:
    isa = _target(AVAILABLE[-1])
    a, b = numbers(9, 8), numbers(8, 16, seed=1)
    gemm, _, packed, _ = packed_form(plain_gemm(a, b, torch.zeros(9, 16, dtype=torch.int32)), b, isa, 1)
    dot = isa.dot("i8")
    assert dot is not None
    wrong = panels("packed", packed, dot.steps, 64 if dot.offset else 128)
    with pytest.raises(CodegenError, match="B is packed for an offset of"):
        emit_gemm(replace(gemm, b=Load(wrong, gemm.b.index)), "f", isa)


def test_other_pairs_of_types_are_refused(isa: Target) -> None:
    a, b = numbers(2, 3), torch.zeros(3, 4)
    assert not supports(plain_gemm(a, b, torch.zeros(2, 4)), isa)
    assert not supports(plain_gemm(b.t().double(), a.t(), torch.zeros(4, 2).double()), isa)
    without = replace(isa, products=isa.products - {"i8"})
    assert not supports(plain_gemm(a, numbers(3, 4), torch.zeros(2, 4, dtype=torch.int32)), without)


@pytest.mark.parametrize("seed", SEEDS)
def test_random(seed: int) -> None:
    """Sizes, layouts, unaligned addresses, batches, panels, tiles, blocks and splits of the work."""
    pick = random.Random(seed)
    isa = _target(pick.choice(AVAILABLE))
    m, n, k = (pick.choice(SIZES) for _ in range(3))
    if pick.random() < 0.2:
        k = pick.choice((300, 771, 1027))
    batch = pick.choice(((), (), (1,), (3,), (2, 2)))

    def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
        kind = pick.choice(("rows", "columns", "every other", "inside"))
        if kind == "columns":
            return numbers(*batch, columns, rows, seed=seed).transpose(-1, -2)
        if kind == "every other":
            return numbers(*batch, rows, 2 * columns, seed=seed)[..., ::2]
        if kind == "inside":
            return numbers(*batch, rows + 3, columns + 5, seed=seed)[..., 1 : rows + 1, 2 : columns + 2]
        return numbers(*batch, rows, columns, seed=seed)

    left, right, shift = matrix(m, k, seed), matrix(k, n, seed + 1), pick.randrange(5)
    (a, _), (b, _) = fenced(left, shift), fenced(right, shift)
    out, memory = fenced(torch.zeros(*batch, m, n, dtype=torch.int32))
    gemm, tensors = plain_gemm(a, b, out), {"a": a, "b": b, "out": out}
    if pick.random() < 0.6:
        gemm, _, tensors["packed"], _ = packed_form(gemm, b, isa, pick.choice(isa.tiles).vectors)
    plan = plan_gemm(gemm, isa)
    words = plan.words.as_int()
    config = choose_config(m, n, words, gemm.packed, 0, isa, "i8")
    if pick.random() < 0.5:
        block = pick.choice((0, 1, 4, 10)) if words else 0
        config = replace(
            config, rows=pick.randint(1, config.rows), unroll=pick.choice((1, 2, 3)), k_block=block
        )
        config = replace(config, m_block=pick.choice((0, config.rows, 2 * config.rows)))
        if config.m_block >= m:
            config = replace(config, m_block=0)
    run, extent = caller(emit_gemm(gemm, "f", isa, config), isa, tensors)
    cut = pick.randint(0, extent)
    assert run(cut, extent) == 0
    assert run(0, cut) == 0
    assert stands(memory)
    wanted = torch.from_numpy(a.numpy().astype(np.int64) @ b.numpy().astype(np.int64)).int()
    assert out.equal(wanted), (seed, isa.name, m, n, k, batch, config)
