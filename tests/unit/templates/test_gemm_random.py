"""Random GEMMs: sizes, layouts, epilogues, tiles, instruction sets and splits of the work, against float64."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from gemm_support import ISAS, buffer, c, caller, isa_named, panels, plain_gemm, v

from lampwork.codegen.llvm.isa.x86 import host_flags, widest
from lampwork.codegen.llvm.templates.choose import GemmConfig, choose_config
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.pack import emit_pack
from lampwork.codegen.llvm.templates.plan import plan_gemm
from lampwork.codegen.target import Target
from lampwork.loops.ir.nodes import Axis, Const, DType, Expr, Gemm, Load, Local, Op, PackB

SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 64, 65, 100)
_WIDTHS = ("scalar", "sse4", "avx2", "avx512")
AVAILABLE = [name for name in ISAS if _WIDTHS.index(name) <= _WIDTHS.index(widest(host_flags()))]


def matrix(
    pick: random.Random, batch: tuple[int, ...], rows: int, columns: int, dtype: torch.dtype
) -> torch.Tensor:
    kind = pick.choice(("rows", "columns", "every other", "inside", "interleaved"))
    if kind == "columns":
        return torch.randn(*batch, columns, rows, dtype=dtype).transpose(-1, -2)
    if kind == "every other":
        return torch.randn(*batch, rows, 2 * columns, dtype=dtype)[..., ::2]
    if kind == "inside":
        return torch.randn(*batch, rows + 3, columns + 5, dtype=dtype)[..., 1 : rows + 1, 2 : columns + 2]
    if kind == "interleaved" and len(batch) == 2:
        return torch.randn(batch[0], rows, batch[1], columns, dtype=dtype).transpose(1, 2)
    return torch.randn(*batch, rows, columns, dtype=dtype)


def epilogue(
    pick: random.Random, product: torch.Tensor, tensors: dict[str, torch.Tensor], dtype: DType
) -> tuple[Expr, torch.Tensor]:
    """An expression over acc, and what it gives for the exact product."""
    acc = Local("acc", dtype)
    batch = [v(f"b{i}") for i in range(product.dim() - 2)]
    bias = Load(buffer("bias", tensors["bias"]), (v("n"),))
    rest = Load(buffer("rest", tensors["rest"]), (*batch, v("m"), v("n")))
    kind = pick.choice(("none", "bias", "residual", "relu", "exp and residual"))
    if kind == "bias":
        return Op("add", (acc, bias), dtype), product + tensors["bias"].double()
    if kind == "residual":
        return Op("add", (acc, rest), dtype), product + tensors["rest"].double()
    if kind == "relu":
        return Op("maximum", (acc, Const(0.0, dtype)), dtype), product.relu()
    if kind == "exp and residual":
        small = Op("exp", (Op("mul", (acc, Const(0.01, dtype)), dtype),), dtype)
        return Op("add", (small, rest), dtype), (product * 0.01).exp() + tensors["rest"].double()
    return acc, product


def packed(pick: random.Random, gemm: Gemm, b: torch.Tensor, isa: Target) -> tuple[Gemm, torch.Tensor]:
    dtype = gemm.b.buffer.dtype
    panel = pick.choice(sorted(shape.vectors for shape in isa.tiles)) * isa.lanes(dtype)
    *batch, k, n = b.shape
    out = torch.empty(*batch, -(-n // panel), k, panel, dtype=b.dtype)
    definition = PackB(panels("packed", out), gemm.batch, Axis("n", c(n)), Axis("k", c(k)), gemm.b)
    run, _ = caller(emit_pack(definition, "p", isa), isa, {"b": b, "packed": out})
    run()
    return replace(gemm, b=Load(definition.out, gemm.b.index)), out


def tile(pick: random.Random, gemm: Gemm, isa: Target) -> GemmConfig | None:
    if pick.random() < 0.5 or plan_gemm(gemm, isa).mode == "dot":
        return None
    m, n, k = (axis.extent.as_int() for axis in (gemm.m, gemm.n, gemm.k))
    assert k is not None
    chosen = choose_config(m, n, k, gemm.packed, 0, isa, gemm.a.buffer.dtype)
    rows = pick.randint(1, chosen.rows)
    k_block = pick.choice([0, *(block for block in (32, 64, 96) if block < k)])
    return replace(
        chosen, rows=rows, unroll=pick.choice((1, 2, 4)), k_block=k_block, m_block=pick.choice((0, rows * 3))
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_gemm(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    isa = isa_named(pick.choice(AVAILABLE))
    dtype = pick.choice((torch.float32, torch.float32, torch.float64))
    m, n, k = pick.choice(SIZES), pick.choice(SIZES), pick.choice((*SIZES, 200, 385))
    batch = pick.choice(((), (), (2,), (2, 3)))
    a, b = matrix(pick, batch, m, k, dtype), matrix(pick, batch, k, n, dtype)
    tensors = {
        "a": a,
        "b": b,
        "out": torch.full((*batch, m, n), float("nan"), dtype=dtype),
        "bias": torch.randn(n, dtype=dtype),
        "rest": torch.randn(*batch, m, n, dtype=dtype),
    }
    value, exact = epilogue(
        pick, a.double() @ b.double(), tensors, "f32" if dtype == torch.float32 else "f64"
    )
    gemm = plain_gemm(a, b, tensors["out"], value)
    if pick.random() < 0.5:
        gemm, tensors["packed"] = packed(pick, gemm, b, isa)
    run, extent = caller(emit_gemm(gemm, "f", isa, tile(pick, gemm, isa)), isa, tensors)
    cuts = sorted(pick.randint(0, extent) for _ in range(pick.randint(0, 2)))
    for begin, end in zip([0, *cuts], [*cuts, extent]):
        run(begin, end)
    error = (tensors["out"].double() - exact).abs().max().item()
    assert error <= (2e-5 if dtype == torch.float32 else 1e-13) * (k**0.5 + 1)
