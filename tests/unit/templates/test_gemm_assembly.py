"""The machine code of the loop over k: no spills, one FMA an accumulator, few loads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gemm_support import buffer, panels, plain_gemm, v

from lampwork.codegen.llvm.isa.x86 import IsaName, describe
from lampwork.codegen.llvm.jit import Jit
from lampwork.codegen.llvm.templates.choose import choose_panel
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.target import Target
from lampwork.loops.ir.nodes import Const, Expr, Gemm, Load, Local, Op

ACC = Local("acc", "f32")
BIAS = Load(buffer("bias", torch.empty(768)), (v("n"),))
RELU = Op("maximum", (Op("add", (ACC, BIAS), "f32"), Const(0.0, "f32")), "f32")
TANH = Op("tanh", (Op("add", (ACC, BIAS), "f32"),), "f32")


def inner_loop(assembly: str) -> list[str]:
    """The instructions of the innermost loop with the most multiply-adds."""
    lines = [line.split("#")[0].rstrip() for line in assembly.splitlines()]
    labels = {line[:-1]: number for number, line in enumerate(lines) if line.startswith(".LBB")}
    best: list[str] = []
    for end, line in enumerate(lines):
        target = line.split()[-1] if line.startswith("\tj") else ""
        start = labels.get(target, end)
        body = lines[start + 1 : end]
        if start < end and not any(each.startswith(".LBB") for each in body):
            instructions = [
                each.strip() for each in body if each.startswith("\t") and not each.startswith("\t.")
            ]
            best = max(best, instructions, key=lambda found: sum("vfmadd231" in each for each in found))
    return best


def assembly(gemm: Gemm, isa: Target) -> list[str]:
    return inner_loop(Jit(isa).assembly(emit_gemm(gemm, "f", isa).text))


def packed(m: int, n: int, k: int, isa: Target, value: Expr) -> Gemm:
    gemm = plain_gemm(torch.empty(m, k), torch.empty(n, k).t(), torch.empty(m, n), value)
    panel = choose_panel(m, n, isa)
    b = panels("packed", torch.empty(-(-n // panel), k, panel))
    return replace(gemm, b=Load(b, gemm.b.index))


@pytest.mark.parametrize("value", [ACC, RELU, TANH], ids=["plain", "relu", "tanh"])
@pytest.mark.parametrize("k", [64, 768])
@pytest.mark.parametrize(("name", "fmas", "loads"), [("avx512", 24, 3), ("avx2", 12, 2)])
def test_accumulators_stay_in_registers(name: IsaName, fmas: int, loads: int, k: int, value: Expr) -> None:
    isa = describe(name)
    loop = assembly(packed(128, 768, k, isa, value), isa)
    assert sum("vfmadd231ps" in each for each in loop) == fmas
    assert sum("broadcast" in each for each in loop) == fmas // loads
    assert sum(each.startswith(("vmovups", "vmovaps")) for each in loop) == loads
    assert not any("(%rsp" in each or "(%rbp" in each for each in loop)


@pytest.mark.parametrize(("m", "n"), [(128, 64), (128, 32), (128, 16), (7, 768)])
def test_other_tiles_do_not_spill(m: int, n: int) -> None:
    isa = describe("avx512")
    loop = assembly(packed(m, n, 256, isa, ACC), isa)
    assert len(loop) > 20
    assert not any("(%rsp" in each or "(%rbp" in each for each in loop)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["avx512", "avx2"])
def test_dot_products_do_not_spill(name: IsaName, rows: int) -> None:
    isa = describe(name)
    loop = assembly(plain_gemm(torch.empty(rows, 512), torch.empty(64, 512).t(), torch.empty(rows, 64)), isa)
    assert sum("vfmadd231ps" in each for each in loop) >= 6
    assert not any("(%rsp" in each or "(%rbp" in each for each in loop)
