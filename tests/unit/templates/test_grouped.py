"""The template of products of groups of rows, beside what tests/unit/lower/test_lower_grouped.py runs of it."""

from __future__ import annotations

import pytest
import torch
from gemm_support import ISAS, available, buffer, c, caller, isa_named, v

from lampwork.codegen.llvm.templates.grouped import emit_grouped
from lampwork.codegen.llvm.templates.plan import supports
from lampwork.loops.ir.nodes import Axis, Gemm, Load, Local

ROWS, DEPTH, COLUMNS, GROUPS = 9, 20, 50, 3


def grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor, out: torch.Tensor) -> Gemm:
    return Gemm(
        buffer("out", out),
        (),
        Axis("m", c(ROWS)),
        Axis("n", c(COLUMNS)),
        Axis("k", c(DEPTH)),
        Load(buffer("x", x), (v("m"), v("k"))),
        Load(buffer("w", w), (v("g"), v("k"), v("n"))),
        (v("m"), v("n")),
        Local("acc", "f32"),
        group=Axis("g", c(GROUPS)),
        ends=Load(buffer("ends", ends), (v("g"),)),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("flipped", [True, False])
@pytest.mark.parametrize(
    "ends", [[2, 2, 7], [9, 9, 9], [0, 0, 1], [-5, 100, 3], [7, 2, 1 << 40], [-(1 << 60), -1, 4]], ids=str
)
def test_nothing_is_touched_past_the_rows_whatever_the_ends_are(
    isa: str, flipped: bool, ends: list[int]
) -> None:
    if not available(isa):
        pytest.skip(f"this CPU has no {isa}")
    memory = torch.full((ROWS + 400, COLUMNS), 7.0)
    x, out = torch.randn(ROWS, DEPTH), memory[200 : 200 + ROWS]
    w = (
        torch.randn(GROUPS, COLUMNS, DEPTH).transpose(1, 2)
        if flipped
        else torch.randn(GROUPS, DEPTH, COLUMNS)
    )
    where = torch.tensor(ends)
    code = emit_grouped(grouped(x, w, where, out), "f", isa_named(isa))
    run, extent = caller(code, isa_named(isa), {"x": x, "w": w, "ends": where, "out": out})
    for item in range(extent):
        assert run(item, item + 1) == 0
    assert memory[:200].eq(7).all() and memory[200 + ROWS :].eq(7).all()
    if ends == sorted(ends) and 0 <= ends[0] and ends[-1] <= ROWS:
        wanted = torch.zeros(ROWS, COLUMNS)
        for start, end, matrix in zip([0, *ends], ends, w, strict=False):
            wanted[start:end] = x[start:end] @ matrix
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


def test_no_template_without_elements() -> None:
    x, w, ends = torch.randn(ROWS, DEPTH), torch.randn(0, DEPTH, COLUMNS), torch.zeros(0, dtype=torch.int64)
    gemm = grouped(x, w, ends, torch.empty(ROWS, COLUMNS))
    assert gemm.group is not None
    empty = Gemm(
        **{**{f: getattr(gemm, f) for f in type(gemm).__dataclass_fields__}, "group": Axis("g", c(0))}
    )
    assert not supports(empty, isa_named("scalar"))
