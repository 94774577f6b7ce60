"""Products of tiles against float64: emulated on any AVX-512, and by AMX where the kernel grants it."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from children import failure
from emulated_tiles import emulated, has_emulation
from gemm_support import caller, plain_gemm
from test_gemm_int8 import exact, fenced, numbers, stands

from lampwork.codegen.llvm.isa import amx
from lampwork.codegen.llvm.isa.x86 import describe, host_flags, host_isa
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.llvm.templates.choose import Likely
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.llvm.templates.prepack import prepack
from lampwork.codegen.llvm.templates.tiles import emit_tiles
from lampwork.codegen.llvm.templates.tiles_plan import tile_config, tile_unit
from lampwork.codegen.target import Target
from lampwork.codegen.variants import Shape, candidates, refinements, varied
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Const, Gemm, Load, Local, Op, PackB

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "24"))
HAS_AMX = host_flags() >= amx.FLAGS and not amx.refusal()

TARGETS = [
    pytest.param(
        "emulated", marks=pytest.mark.skipif(not has_emulation(), reason="this CPU has no AVX512-BF16")
    ),
    pytest.param(
        "amx", marks=pytest.mark.skipif(not HAS_AMX, reason="this CPU has no AMX, or may not use it")
    ),
]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    """With blocks so small that small products have several."""
    small = {"unit_words": 48, "unit_bytes": 32 << 10}
    return replace(emulated() if request.param == "emulated" else host_isa("amx"), **small)


def matrix(dtype: torch.dtype, *shape: int, seed: int) -> torch.Tensor:
    if dtype is torch.int8:
        return numbers(*shape, seed=seed)
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run_tiles(
    gemm: Gemm,
    target: Target,
    tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int] | None = None,
    likely: int | None = None,
    *,
    packed: bool = False,
) -> None:
    """Compute a product, its work items in two calls; `packed`: over the panels that prepack asks for."""
    tensors = dict(tensors)
    if packed:
        (gemm,), (pack,) = prepack([gemm], [], frozenset({"b"}), target)
        assert isinstance(gemm, Gemm) and isinstance(pack, PackB) and gemm.packed in (16, 32)
        shape = [size.as_int() for size in pack.out.shape]
        panels, memory = fenced(torch.zeros(*shape, dtype=tensors["b"].dtype))
        run, _ = caller(emit_pack(pack, "p", target), target, {"b": tensors["b"], pack.out.name: panels})
        assert run() == 0 and stands(memory)
        tensors[pack.out.name] = panels
    code = emit_tiles(gemm, "f", target, Likely(likely))
    run, extent = caller(code, target, tensors, sizes)
    half = extent // 2
    assert run(half, extent) == 0 and run(0, half) == 0


def expected(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return exact(a, b).double() if a.dtype is torch.int8 else a.double() @ b.double()


def near(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dtype is torch.int8:
        assert torch.equal(got.double(), expected(a, b))
        return
    # Sums in float32 of k products, in any order.
    bound = a.double().abs() @ b.double().abs() * (a.shape[-1] + 4) * 2**-24
    assert ((got.double() - expected(a, b)).abs() <= bound + 1e-30).all()


def sums_like(a: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.full(shape, 77, dtype=torch.int32 if a.dtype is torch.int8 else torch.float32)


@pytest.mark.parametrize("seed", range(COUNT))
def test_products(target: Target, seed: int) -> None:
    draw = random.Random(seed)
    dtype = draw.choice((torch.bfloat16, torch.int8))
    m, n, k = (draw.choice((8, 15, 16, 17, 31, 32, 33, 48, 50, 65, 100)) for _ in range(3))
    k = draw.choice((k, 64, 128, 320, 333)) + 32
    batch = draw.choice(((), (), (3,), (2, 2)))
    a, b = (matrix(dtype, *batch, *shape, seed=seed + 1) for shape in ((m, k), (k, n)))
    if draw.random() < 0.3:  # B along k, as a weight lies
        b = b.mT.contiguous().mT
    if draw.random() < 0.2:  # A along m
        a = a.mT.contiguous().mT
    (a, before), (b, after) = fenced(a, draw.randrange(3)), fenced(b, draw.randrange(3))
    out, memory = fenced(sums_like(a, *batch, m, n), draw.randrange(3))
    run_tiles(plain_gemm(a, b, out), target, {"a": a, "b": b, "out": out}, packed=draw.random() < 0.7)
    near(out, a, b)
    assert stands(memory) and len(before) and len(after)


@pytest.mark.parametrize("k", [64, 65])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_open_numbers_of_rows(target: Target, dtype: torch.dtype, k: int) -> None:
    """One function from one row to many: vectors for few, tiles for the others."""
    b = matrix(dtype, k, 50, seed=1)
    m = Index.sym("s0")
    for rows in (1, 7, 8, 16, 17, 33, 530):
        a, out = matrix(dtype, rows, k, seed=2), sums_like(b, rows, 50)
        gemm = replace(plain_gemm(a, b, out), m=Axis("m", m))
        gemm = replace(
            gemm,
            out=replace(gemm.out, shape=(m, gemm.out.shape[1])),
            a=replace(gemm.a, buffer=replace(gemm.a.buffer, shape=(m, gemm.a.buffer.shape[1]))),
        )
        run_tiles(gemm, target, {"a": a, "b": b, "out": out}, {"s0": rows}, packed=rows % 2 == 0)
        near(out, a, b)


def test_the_epilogue_is_that_of_other_products(target: Target) -> None:
    """A bias, a residual, a half type and an activation."""
    a, b = matrix(torch.bfloat16, 50, 96, seed=3), matrix(torch.bfloat16, 96, 70, seed=4)
    bias, more = torch.randn(70), torch.randn(50, 70).bfloat16()
    out = torch.zeros(50, 70, dtype=torch.bfloat16)
    gemm = plain_gemm(a, b, out)
    acc, n = Local("acc", "f32"), Index.var("n")
    bias_buffer = replace(
        gemm.out, name="bias", dtype="f32", shape=gemm.out.shape[1:], strides=gemm.out.strides[1:]
    )
    value = Op("add", (acc, Load(bias_buffer, (n,))), "f32")
    residual = Load(replace(gemm.out, name="more"), (Index.var("m"), n))
    value = Op("add", (value, Op("cast", (residual,), "f32")), "f32")
    value = Op("cast", (Op("maximum", (value, Const(0.0, "f32")), "f32"),), "bf16")
    gemm = replace(gemm, value=value)
    tensors = {"a": a, "b": b, "out": out, "bias": bias, "more": more}
    run_tiles(gemm, target, tensors, packed=True)
    wanted = torch.relu(expected(a, b) + bias.double() + more.double())
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-5)


def test_what_k_lacks_to_a_tile_is_zero_in_both(target: Target) -> None:
    """Behind the last row of a panel lies the next one, and behind a row of A the next: not even inf of them counts."""
    a, b = matrix(torch.bfloat16, 33, 49, seed=5), matrix(torch.bfloat16, 49, 64, seed=6)
    a[1:], b[:, 32:] = torch.inf, torch.nan
    out = torch.zeros(33, 64)
    for packed in (False, True):
        run_tiles(plain_gemm(a, b, out), target, {"a": a, "b": b, "out": out}, packed=packed)
        near(out[:1, :32], a[:1], b[:, :32])
        assert out[:, 32:].isnan().all() and not out[0, :32].isnan().any()


def test_special_numbers(target: Target) -> None:
    a, b = torch.zeros(16, 32).bfloat16(), torch.zeros(32, 16).bfloat16()
    a[0, 0], b[0, 0] = torch.inf, 1.0
    a[1, 0], a[1, 1], b[1, 0] = torch.inf, -torch.inf, 1.0
    a[2, 3] = torch.nan
    a[3, 4], b[4, 3] = 2.0**-127, 2.0  # subnormal: counts as zero, as it does for vdpbf16ps
    a[4, 5], b[5, 4] = 2.0**100, 2.0**100
    out = torch.zeros(16, 16)
    run_tiles(plain_gemm(a, b, out), target, {"a": a, "b": b, "out": out})
    assert out[0, 0] == torch.inf and out[1, 0].isnan() and out[2].isnan().all()
    assert out[3, 3] == 0 and out[4, 4] == torch.inf and out[5:].eq(0).all()


def test_int8_wraps(target: Target) -> None:
    k = 1 << 17
    a, b = torch.full((16, k), -128, dtype=torch.int8), torch.full((k, 16), -128, dtype=torch.int8)
    a[1] = 127
    out = torch.zeros(16, 16, dtype=torch.int32)
    run_tiles(plain_gemm(a, b, out), target, {"a": a, "b": b, "out": out}, packed=True)
    assert out[0].eq(-(2**31)).all() and out[1].eq(127 * -128 * k).all()


def test_both_kinds_of_instructions_give_the_same_int8(target: Target) -> None:
    a, b = numbers(40, 100), numbers(100, 40, seed=1)
    tiles, vectors = sums_like(a, 40, 40), sums_like(a, 40, 40)
    run_tiles(plain_gemm(a, b, tiles), target, {"a": a, "b": b, "out": tiles})
    gemm = plain_gemm(a, b, vectors)
    run, _ = caller(emit_gemm(gemm, "g", target), target, {"a": a, "b": b, "out": vectors})
    assert run() == 0 and torch.equal(tiles, vectors)


# --- which products ---------------------------------------------------------------------------------------------------


def a_gemm(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> Gemm:
    a, b = torch.zeros(m, k, dtype=dtype), torch.zeros(k, n, dtype=dtype)
    return plain_gemm(a, b, sums_like(a, m, n))


def test_few_rows_and_short_sums_are_not_made_of_tiles() -> None:
    target = describe("amx")
    assert tile_unit(a_gemm(target.unit_rows, 32, 64), target) is not None
    assert tile_unit(a_gemm(target.unit_rows - 1, 32, 64), target) is None
    assert tile_unit(a_gemm(64, 32, 14), target) is None
    assert tile_unit(a_gemm(64, 32, 64, torch.float32), target) is None
    assert tile_unit(a_gemm(64, 32, 64, torch.float16), target) is None
    assert tile_unit(a_gemm(64, 32, 64), describe("avx512")) is None
    # Panels of another instruction cannot be read.
    pairs = replace(target, dots=tuple(replace(dot, steps=1) for dot in target.dots))
    assert tile_unit(a_gemm(64, 32, 64), pairs) is None
    with pytest.raises(CodegenError, match="no tiles for the gemm 'out' of f32"):
        emit_tiles(a_gemm(64, 32, 64, torch.float32), "f", target)


def test_parts() -> None:
    target = describe("amx")

    def parts(m: int, n: int, k: int) -> tuple[str, bool, int, int, int]:
        gemm = a_gemm(m, n, k)
        unit = tile_unit(gemm, target)
        assert unit is not None
        found = tile_config(gemm, unit, target)
        return found.left, found.whole, found.rows, found.panels, found.block

    assert parts(128, 768, 768) == ("in place", True, 128, 1, 256)
    assert parts(32, 768, 3072) == ("in place", True, 32, 1, 0)
    assert parts(4096, 768, 512) == ("in place", True, 512, 1, 0)
    assert parts(196, 768, 100) == ("copied", False, 224, 4, 0)
    assert parts(3136, 64, 147) == ("copied", False, 512, 4, 0)


def test_a_tuner_measures_vectors_too() -> None:
    target, shape = describe("amx"), Shape("gemm", "bf16", 128, 768, 768, True)
    names = list(candidates(shape, target))
    assert names == ["", "unit_words 512", "unit_words 128", "unit_rows 65535"]
    assert not list(refinements("", shape, target))
    assert tile_unit(a_gemm(128, 768, 768), varied(target, names[-1])) is None
    assert next(candidates(replace(shape, dtype="f32"), target)) == "" and len(names) > 1


# --- machine code -----------------------------------------------------------------------------------------------------


def assembly(dtype: torch.dtype, m: int = 128) -> list[str]:
    target = describe("amx")
    a, b = torch.zeros(m, 768, dtype=dtype), torch.zeros(768, 768, dtype=dtype)
    gemm = plain_gemm(a, b, sums_like(a, m, 768))
    (packed,), _ = prepack([gemm], [], frozenset({"b"}), target)
    assert isinstance(packed, Gemm)
    return Jit(target).assembly(emit_tiles(packed, "f", target).text).splitlines()


@pytest.mark.parametrize(
    ("dtype", "dot"), [(torch.bfloat16, "tdpbf16ps"), (torch.int8, "tdpbssd")], ids=["bf16", "int8"]
)
def test_four_loads_for_four_products(dtype: torch.dtype, dot: str) -> None:
    lines = assembly(dtype)
    places = [number for number, line in enumerate(lines) if dot in line]
    start = max(number for number in range(places[0]) if re.match(r"\.LBB.*:", lines[number]))
    end = next(number for number in range(places[-1], len(lines)) if lines[number].lstrip().startswith("j"))
    loop = [line.split()[0] for line in lines[start + 1 : end] if not line.lstrip().startswith(".")]
    assert loop.count(dot) == loop.count("tileloadd") == 4 == len(places)
    # Nothing but addresses, prefetching and the count beside them: no spills, no copies between registers.
    assert set(loop) <= {dot, "tileloadd", "leaq", "addq", "cmpq", "prefetcht1"}
    text = "\n".join(lines)
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1
    assert text.index("ldtilecfg") < text.index("tileloadd") < text.index("tilerelease")


def test_one_tile_of_rows() -> None:
    """Sixteen rows: one tile of A for two of B."""
    text = "\n".join(assembly(torch.bfloat16, 16))
    assert text.count("tdpbf16ps") == 2 and text.count("tileloadd") == 3 and text.count("tilezero") == 2


def test_no_other_target_has_them() -> None:
    gemm = a_gemm(128, 768, 768)
    for name in ("avx512", "avx2", "sse4"):
        text = Jit(describe(name)).assembly(emit_gemm(gemm, "f", describe(name)).text)
        assert not re.search(r"tile|tdp|%tmm", text)


# --- the emulation ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not has_emulation(), reason="this CPU has no AVX512-BF16")
def test_the_emulation_refuses_what_the_cpu_refuses() -> None:
    from lampwork.codegen.llvm.builder import Builder, Module
    from lampwork.codegen.llvm.templates.code import GemmCode, function

    def using(shapes: list[tuple[int, int]], *, configured: bool = True) -> None:
        b = Builder(Module(), emulated())
        unit = emulated().units[0].code(b)
        if configured:
            unit.configure(shapes)
        unit.dot(0, 1, 2)
        unit.release()
        code = GemmCode("f", function(b, "f"), (), (), Index.const(1), Index.const(1), 1)
        assert caller(code, emulated(), {"none": torch.zeros(1)})[0]() == 0

    good = [(7, 36), (7, 20), (5, 36)]
    assert not failure([("fits", lambda: using(good))])
    for name, shapes in {
        "rows of the sums": [(8, 36), *good[1:]],
        "columns of the sums": [(7, 40), *good[1:]],
        "depth": [good[0], (7, 24), good[2]],
        "seventeen rows": [(17, 36), (17, 20), good[2]],
        "no rows": [(0, 36), (0, 20), good[2]],
    }.items():
        assert "signal" in failure([(name, lambda shapes=shapes: using(shapes))]), name
    assert "signal" in failure([("not configured", lambda: using(good, configured=False))])
