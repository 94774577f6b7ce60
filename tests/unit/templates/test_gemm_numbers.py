"""GEMM kernels against float64: sizes, layouts, batches, dtypes, instruction sets, splits of the work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gemm_support import ISAS, buffer, c, caller, check, isa_named, panels, plain_gemm, v

from lampwork.codegen.llvm.isa.x86 import host_flags, widest
from lampwork.codegen.llvm.templates.choose import GemmConfig, choose_panel
from lampwork.codegen.llvm.templates.gemm import emit_gemm, supports
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.target import Target
from lampwork.loops.ir.nodes import Axis, Gemm, Load, PackB

_WIDTHS = ("scalar", "sse4", "avx2", "avx512")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Target:
    if _WIDTHS.index(request.param) > _WIDTHS.index(widest(host_flags())):
        pytest.skip(f"this CPU has no {request.param}")
    return isa_named(request.param)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def run_gemm(a: torch.Tensor, b: torch.Tensor, isa: Target, config: GemmConfig | None = None) -> torch.Tensor:
    out = torch.full((*a.shape[:-1], b.shape[-1]), float("nan"), dtype=a.dtype)
    gemm = plain_gemm(a, b, out)
    assert supports(gemm, isa)
    run, _ = caller(emit_gemm(gemm, "f", isa, config), isa, {"a": a, "b": b, "out": out})
    assert run() == 0
    return out


def pack(b: torch.Tensor, panel: int, isa: Target) -> torch.Tensor:
    *batch_sizes, k, n = b.shape
    batch = tuple(Axis(f"b{i}", c(size)) for i, size in enumerate(batch_sizes))
    packed = torch.full((*batch_sizes, -(-n // panel), k, panel), float("nan"), dtype=b.dtype)
    load = Load(buffer("b", b), (*(v(axis.name) for axis in batch), v("k"), v("n")))
    definition = PackB(panels("packed", packed), batch, Axis("n", c(n)), Axis("k", c(k)), load)
    run, _ = caller(emit_pack(definition, "p", isa), isa, {"b": b, "packed": packed})
    run()
    return packed


def run_packed(a: torch.Tensor, b: torch.Tensor, isa: Target) -> torch.Tensor:
    panel = choose_panel(a.shape[-2], b.shape[-1], isa, runs_along_k=False)
    packed = pack(b, panel, isa)
    out = torch.full((*a.shape[:-1], b.shape[-1]), float("nan"), dtype=a.dtype)
    gemm = plain_gemm(a, b, out)
    gemm = replace(gemm, b=Load(panels("packed", packed), gemm.b.index))
    run, _ = caller(emit_gemm(gemm, "f", isa), isa, {"a": a, "packed": packed, "out": out})
    run()
    return out


SIZES = [
    (1, 1, 1),
    (1, 10, 64),
    (3, 50, 17),
    (7, 10, 1),
    (8, 128, 64),
    (13, 50, 200),
    (65, 97, 70),
    (197, 64, 40),
]


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_sizes_with_rows_of_columns(isa: Target, m: int, n: int, k: int) -> None:
    a, b = normal(m, k), normal(k, n, seed=1)
    check(run_gemm(a, b, isa), a, b)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_sizes_with_a_transposed_operand(isa: Target, m: int, n: int, k: int) -> None:
    a, b = normal(m, k), normal(n, k, seed=1).t()
    check(run_gemm(a, b, isa), a, b)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_sizes_with_a_packed_operand(isa: Target, m: int, n: int, k: int) -> None:
    a, b = normal(m, k), normal(n, k, seed=1).t()
    check(run_packed(a, b, isa), a, b)


@pytest.mark.parametrize(("m", "n", "k"), [(128, 768, 768), (197, 1000, 64), (20, 50, 3072), (300, 48, 500)])
def test_network_sizes(m: int, n: int, k: int) -> None:
    isa = isa_named(widest(host_flags()))
    a, b = normal(m, k), normal(n, k, seed=1).t()
    check(run_packed(a, b, isa), a, b)
    check(run_gemm(a, b, isa), a, b)
    check(run_gemm(a, b.contiguous(), isa), a, b)


def test_double(isa: Target) -> None:
    a, b = normal(37, 250, dtype=torch.float64), normal(250, 41, seed=1, dtype=torch.float64)
    for operand in (b, b.t().contiguous().t()):
        out = run_gemm(a, operand, isa)
        torch.testing.assert_close(out, a @ b, rtol=1e-13, atol=1e-12)


def test_batches(isa: Target) -> None:
    a, b = normal(2, 3, 17, 40), normal(2, 3, 40, 21, seed=1)
    check(run_gemm(a, b, isa), a, b)
    check(run_gemm(a, b.transpose(2, 3).contiguous().transpose(2, 3), isa), a, b)
    check(run_packed(a, b, isa), a, b)


def test_broadcast_batches(isa: Target) -> None:
    a = normal(1, 3, 9, 20).expand(2, 3, 9, 20)
    b = normal(2, 1, 20, 18, seed=1).expand(2, 3, 20, 18)
    check(run_gemm(a, b, isa), a, b)


def test_attention_layouts(isa: Target) -> None:
    """Heads as they lie after a linear layer: [batch, tokens, heads, 64] seen as [batch, heads, tokens, 64]."""
    q, k, value = (normal(2, 33, 3, 64, seed=s).transpose(1, 2) for s in range(3))
    scores = run_gemm(q, k.transpose(2, 3), isa)
    check(scores, q, k.transpose(2, 3))
    check(run_gemm(scores, value, isa), scores, value)


def test_transposed_and_strided_left(isa: Target) -> None:
    b = normal(30, 20, seed=1)
    for a in (normal(30, 25).t(), normal(25, 90)[:, ::3], normal(50, 30)[::2], normal(1, 30).expand(25, 30)):
        check(run_gemm(a, b, isa), a, b)


def test_strided_right(isa: Target) -> None:
    a = normal(25, 30)
    for b in (
        normal(30, 60, seed=1)[:, ::2],
        normal(60, 20, seed=1)[::2],
        normal(30, 1, seed=1).expand(30, 20),
    ):
        check(run_gemm(a, b, isa), a, b)


def test_left_seen_through_merged_dimensions(isa: Target) -> None:
    """A is [heads, tokens, 16] read as [tokens, heads * 16]: k // 16 and k % 16 in its index."""
    heads = normal(15, 21, 16)
    a = heads.permute(1, 0, 2).reshape(21, 240)
    b = normal(240, 30, seed=1)
    out = torch.empty(21, 30)
    gemm = plain_gemm(a, b, out)
    load = Load(buffer("a", heads), (v("k") // 16, v("m"), v("k") % 16))
    for right in (b, b.t().contiguous().t()):
        changed = replace(gemm, a=load, b=Load(buffer("b", right), gemm.b.index))
        assert supports(changed, isa)
        run, _ = caller(emit_gemm(changed, "f", isa), isa, {"a": heads, "b": right, "out": out.fill_(0)})
        run()
        check(out, a, b)


def test_rows_seen_through_merged_dimensions(isa: Target) -> None:
    """m // 7 and m % 7 in A's index, where the two do not merge."""
    whole = normal(3, 9, 20)
    a = whole[:, :7].reshape(21, 20)
    b, out = normal(20, 30, seed=1), torch.empty(21, 30)
    gemm = plain_gemm(a, b, out)
    load = Load(buffer("a", whole), (v("m") // 7, v("m") % 7, v("k")))
    run, _ = caller(emit_gemm(replace(gemm, a=load), "f", isa), isa, {"a": whole, "b": b, "out": out})
    run()
    check(out, a, b)


@pytest.mark.parametrize("operand", ["rows", "transposed", "packed"])
def test_any_split_of_the_work_gives_the_same_bits(operand: str) -> None:
    isa = isa_named(widest(host_flags()))
    a, b = normal(3, 70, 300), normal(3, 300, 130, seed=1)
    if operand != "rows":
        b = b.transpose(1, 2).contiguous().transpose(1, 2)
    out = torch.zeros(3, 70, 130)
    gemm = plain_gemm(a, b, out)
    tensors = {"a": a, "b": b, "out": out}
    config = GemmConfig(rows=8, vectors=3, k_block=150, m_block=32)
    width = config.vectors * isa.lanes("f32")
    if operand == "packed":
        packed = pack(b, width, isa)
        gemm = replace(gemm, b=Load(panels("packed", packed), gemm.b.index))
        tensors["packed"] = packed
    run, extent = caller(emit_gemm(gemm, "f", isa, config), isa, tensors)
    assert extent == 3 * 3 * -(-130 // width)
    run()
    whole = out.clone()
    for cuts in ([0, 1, extent], [0, 5, 6, 20, extent], list(range(extent + 1))):
        out.zero_()
        for begin, end in zip(cuts[:-1], cuts[1:]):
            run(begin, end)
        assert torch.equal(out, whole)
    out.zero_()
    run(4, 4)
    assert not out.any()


def test_unsupported_operands_are_refused(isa: Target) -> None:
    a, b = normal(4, 5), normal(5, 6)
    good = plain_gemm(a, b, torch.empty(4, 6))
    half = replace(good.a.buffer, dtype="bf16")
    assert not supports(replace(good, a=Load(half, good.a.index)), isa)
    double = replace(good.b.buffer, dtype="f64")
    assert not supports(replace(good, b=Load(double, good.b.index)), isa)
    assert not supports(replace(good, k=Axis("k", c(0))), isa)


def test_long_sums_stay_as_exact_as_eager() -> None:
    isa = isa_named(widest(host_flags()))
    a, b = normal(16, 9216), normal(9216, 48, seed=1)
    check(run_gemm(a, b, isa), a, b)
    check(run_packed(a, b, isa), a, b)


def test_generated_text_is_stable() -> None:
    isa = isa_named("avx512")
    a, b = normal(16, 96), normal(96, 48)
    gemm: Gemm = plain_gemm(a, b, torch.empty(16, 48))
    assert emit_gemm(gemm, "f", isa).text == emit_gemm(gemm, "f", isa).text
