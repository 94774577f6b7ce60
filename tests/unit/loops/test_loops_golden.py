"""The text of definitions, groups and kernels of usual things."""

from __future__ import annotations

import pytest
from loops_build import (
    ACC,
    MACHINE,
    I,
    at,
    axes,
    buffer,
    linear,
    mean_of,
    op,
    pointwise,
    reduce,
)
from test_loops_fuse import gelu, layer_norm, softmax

from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.fusion.group import format_groups
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Extern, Load, Scan, View
from lampwork.loops.ir.printing import format_definitions, format_kernel
from lampwork.loops.ir.verify import verify_definitions, verify_kernel
from lampwork.loops.schedule.schedule import schedule


def residual_layer_norm():
    p, q, x, y = (buffer(name, 12, 48) for name in "pqxy")
    w, b = buffer("w", 48), buffer("b", 48)
    return [pointwise(x, op("add", at(p), at(q))), *layer_norm(x, w, b, y, (12,), 48)], {"x", "y"}


def masked_softmax():
    s, mask, x, y = (
        buffer("s", 12, 8, 32),
        buffer("mask", 8, 32),
        buffer("x", 12, 8, 32),
        buffer("y", 12, 8, 32),
    )
    scaled = pointwise(x, op("add", op("mul", at(s), 0.125), at(mask, I[1], I[2])))
    return [scaled, *softmax(x, y, (12, 8), 32)], {"y"}


def linear_gelu_heads():
    x, w, bias, c = buffer("x", 8, 16), buffer("w", 32, 16), buffer("bias", 32), buffer("c", 8, 32)
    y = buffer("y", 4, 8, 8)
    product = linear(c, x, w, 8, 32, 16, op("add", ACC, at(bias, I[1])))
    return [product, pointwise(y, gelu(at(c, I[1], I[0] * 8 + I[2])))], {"y"}


def transpose():
    x, y = buffer("x", 30, 48), buffer("y", 48, 30)
    return [pointwise(y, op("neg", at(x, I[1], I[0])))], {"y"}


def column_mean():
    x, y = buffer("x", 40, 48), buffer("y", 48)
    return [reduce(y, (40,), "sum", at(x, I[1], I[0]), mean_of(40))], {"y"}


def total():
    x, y = buffer("x", 1000, 1000), buffer("y")
    return [reduce(y, (1000, 1000), "sum", op("mul", at(x, I[0], I[1]), at(x, I[0], I[1])))], {"y"}


def embedding_argmax_cumsum_call():
    table, ids, x = buffer("table", 50, 24), buffer("ids", 2, 5, dtype="i64"), buffer("x", 2, 5, 24)
    best, run, out = buffer("best", 2, 5, dtype="i64"), buffer("run", 2, 5, 24), buffer("out", 2, 5, 24)
    view = View(run, run.shape, run.strides, as_index(0))
    return [
        pointwise(x, Load(table, (Index.indirect(at(ids, I[0], I[1]), 50), I[2]))),
        reduce(best, (24,), "argmax", at(x)),
        Scan(run, axes(2, 5), axes(24, first=2)[0], (I[0], I[1], I[2]), "sum", at(x)),
        Extern((out,), "aten::sort.values", ([view], 1, None), (("stable", True),)),
    ], {"x", "best", "out"}


@pytest.mark.parametrize(
    "case",
    [
        residual_layer_norm,
        masked_softmax,
        linear_gelu_heads,
        transpose,
        column_mean,
        total,
        embedding_argmax_cumsum_call,
    ],
)
def test_text(case, golden):
    definitions, outputs = case()
    verify_definitions(definitions)
    groups, decisions = fuse(definitions, frozenset(outputs), MACHINE)
    kernels = [
        kernel
        for number, group in enumerate(groups)
        if group.kind in ("pointwise", "rows", "scan")
        for kernel in schedule(group, f"k{number}", MACHINE)
    ]
    for kernel in kernels:
        verify_kernel(kernel)
    parts = [
        "# definitions",
        format_definitions(definitions),
        "# decisions",
        *map(str, decisions),
        "# groups",
        format_groups(groups),
        "# kernels",
        *map(format_kernel, kernels),
    ]
    golden(f"loops/{case.__name__}", "\n".join(parts))
