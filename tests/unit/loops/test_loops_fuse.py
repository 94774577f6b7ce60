"""Fusion: equal results before and after, and the groups one expects."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from loops_build import (
    ACC,
    MACHINE,
    I,
    at,
    buffer,
    check,
    linear,
    mean_of,
    op,
    pointwise,
    random_inputs,
    reduce,
)

from lampwork.loops.fusion.fuse import apart, fuse
from lampwork.loops.ir.definitions import outs_of
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Const, Extern, Gemm, IndexValue, Load, View

# --- definitions of usual things --------------------------------------------------------------------------------------


def softmax(x, y, rows, n, prefix=""):
    rank = len(rows)
    top, total = buffer(f"{prefix}top", *rows), buffer(f"{prefix}total", *rows)
    powers = buffer(f"{prefix}exp", *rows, n)
    return [
        reduce(top, (n,), "max", at(x)),
        pointwise(powers, op("exp", op("sub", at(x), at(top, *I[:rank])))),
        reduce(total, (n,), "sum", at(powers)),
        pointwise(y, op("div", at(powers), at(total, *I[:rank]))),
    ]


def layer_norm(x, w, b, y, rows, n, prefix=""):
    rank = len(rows)
    mean, var = buffer(f"{prefix}mean", *rows), buffer(f"{prefix}var", *rows)
    rstd = buffer(f"{prefix}rstd", *rows)
    centred = op("sub", at(x), at(mean, *I[:rank]))
    normal = op("mul", op("sub", at(x), at(mean, *I[:rank])), at(rstd, *I[:rank]))
    return [
        reduce(mean, (n,), "sum", at(x), mean_of(n)),
        reduce(var, (n,), "sum", op("mul", centred, centred), mean_of(n)),
        pointwise(rstd, op("rsqrt", op("add", at(var), 1e-5))),
        pointwise(y, op("add", op("mul", normal, at(w, I[rank])), at(b, I[rank]))),
    ]


def gelu(value):
    half = op("mul", value, 0.5)
    inner = op("erf", op("mul", value, 1 / math.sqrt(2)))
    return op("mul", half, op("add", inner, 1.0))


# --- inlining ---------------------------------------------------------------------------------------------------------


def test_chain_becomes_one_kernel():
    x, a, b, c = (buffer(name, 6, 10) for name in "xabc")
    chain = [
        pointwise(a, op("add", at(x), 1.0)),
        pointwise(b, gelu(at(a))),
        pointwise(c, op("sigmoid", at(b))),
    ]
    check(chain, ["c"], random_inputs(0, x), groups=1)


def test_an_output_inside_of_a_chain_stays():
    x, a, b = (buffer(name, 6, 10) for name in "xab")
    chain = [pointwise(a, op("exp", at(x))), pointwise(b, op("add", at(a), 1.0))]
    (group,) = check(chain, ["a", "b"], random_inputs(0, x), groups=1)
    assert not group.private and len(group.definitions) == 2


def test_what_no_output_needs_is_dropped():
    x, a, b = (buffer(name, 6, 10) for name in "xab")
    groups = check(
        [pointwise(a, at(x)), pointwise(b, op("exp", at(x)))], ["b"], random_inputs(0, x), groups=1
    )
    assert [out.name for out in groups[0].outs] == ["b"]


def test_inlining_through_a_permutation_and_a_reshape():
    x, a, b = buffer("x", 4, 6), buffer("a", 6, 4), buffer("b", 24)
    chain = [
        pointwise(a, op("exp", at(x, I[1], I[0]))),
        pointwise(b, op("add", at(a, I[0] // 4, I[0] % 4), 1.0)),
    ]
    check(chain, ["b"], random_inputs(0, x), groups=1)


def test_costly_broadcast_is_not_computed_again():
    x, a, b = buffer("x", 6), buffer("a", 6), buffer("b", 6, 50)
    chain = [pointwise(a, op("exp", at(x))), pointwise(b, op("add", at(a, I[0]), 1.0))]
    check(chain, ["b"], random_inputs(0, x), groups=2)


def test_cheap_broadcast_is():
    x, a, b = buffer("x", 6), buffer("a", 6), buffer("b", 6, 50)
    chain = [pointwise(a, op("neg", at(x))), pointwise(b, op("add", at(a, I[0]), 1.0))]
    check(chain, ["b"], random_inputs(0, x), groups=1)


def test_padding_reads_nothing_outside():
    """y is x + 1 with a border of 9, where x itself is gathered by ids that have no border."""
    table, ids, x, y = buffer("w", 5), buffer("ids", 6, dtype="i64"), buffer("x", 6), buffer("y", 8)
    gather = pointwise(x, op("add", at(table, Index.indirect(at(ids), 5)), 1.0))
    inside = op(
        "and",
        op("ge", IndexValue(I[0], "i64"), Const(1, "i64"), dtype="bool"),
        op("lt", IndexValue(I[0], "i64"), Const(7, "i64"), dtype="bool"),
    )
    pad = pointwise(y, Load(x, (I[0] - 1,), inside, 9.0))
    check([gather, pad], ["y"], random_inputs(0, table, ids), groups=1)


def test_constants_go_everywhere():
    zero, x, a, b = buffer("zero", 4, 4), buffer("x", 4, 4), buffer("a", 4, 4), buffer("b", 4)
    definitions = [
        pointwise(zero, Const(0.5, "f32")),
        pointwise(a, op("add", at(x), at(zero))),
        reduce(b, (4,), "sum", op("mul", at(zero), at(x, I[1], I[0]))),
    ]
    groups = check(definitions, ["a", "b"], random_inputs(0, x))
    assert all("zero" not in group.reads for group in groups)


def test_narrow_values_are_rounded_where_they_were_stored():
    x, a, b = buffer("x", 64), buffer("a", 64, dtype="bf16"), buffer("b", 64)
    chain = [
        pointwise(a, op("cast", at(x), dtype="bf16")),
        pointwise(b, op("mul", op("cast", at(a), dtype="f32"), 3.0)),
    ]
    check(chain, ["b"], random_inputs(0, x), groups=1, tolerance=0)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_softmax_is_one_kernel_with_scratch():
    x, y = buffer("x", 6, 5, 40), buffer("y", 6, 5, 40)
    (group,) = check(softmax(x, y, (6, 5), 40), ["y"], random_inputs(0, x), groups=1)
    assert group.private == {"top", "exp", "total"}


def shifted_rows(shift, *readers):
    """d[i, j] = shift(x, m) for x[i, j] and m[i], and what reads it."""
    x, m, d = buffer("x", 12, 40), buffer("m", 12), buffer("d", 12, 40)
    return [pointwise(d, shift(at(x), at(m, I[0]))), *(reader(d) for reader in readers)], (x, m)


def sum_along(axis):
    out = buffer(f"sum{axis}", 40 if axis == 0 else 12)
    index = (I[1], I[0]) if axis == 0 else (I[0], I[1])
    return lambda d: reduce(out, (12 if axis == 0 else 40,), "sum", op("exp", at(d, *index)))


def as_it_lies(d):
    return pointwise(buffer("y", 12, 40), op("mul", at(d), 3.0))


def by_its_sum(d):
    return pointwise(buffer("y", 12, 40), op("sub", at(d), at(buffer("sum1", 12), I[0])))


@pytest.mark.parametrize("inputs", ["random", "infinite"])
def test_what_is_the_same_for_a_row_is_taken_off_again(inputs):
    definitions, (x, m) = shifted_rows(lambda x, m: op("sub", x, m), sum_along(1), by_its_sum)
    given = random_inputs(0, x, m)
    if inputs == "infinite":
        given["x"].flat[:4], given["m"].flat[:3] = [np.inf, -np.inf, np.nan, -0.0], [np.inf, -np.inf, np.nan]
    (group,) = check(definitions, ["y", "sum1"], given, groups=1)
    assert "d" not in group.reads | group.private | {out.name for out in group.outs}


def test_it_is_taken_off_again_by_what_depends_on_it_in_steps():
    definitions, (x, m) = shifted_rows(lambda x, m: op("sub", x, m))
    powers, total, log = buffer("powers", 12, 40), buffer("total", 12), buffer("log", 12)
    d, y = buffer("d", 12, 40), buffer("y", 12, 40)
    definitions += [
        pointwise(powers, op("exp", at(d))),
        reduce(total, (40,), "sum", at(powers)),
        pointwise(log, op("log", at(total))),
        pointwise(y, op("sub", at(d), at(log, I[0]))),
    ]
    (group,) = check(definitions, ["y", "log"], random_inputs(0, x, m), groups=1)
    assert "d" not in group.reads | group.private | {out.name for out in group.outs}


@pytest.mark.parametrize(
    "shift, readers",
    [
        (lambda x, m: op("sub", x, m), (sum_along(0), as_it_lies)),
        (lambda x, m: op("sub", x, m), (sum_along(1), as_it_lies)),
        (lambda x, m: op("exp", op("sub", x, m)), (sum_along(1), by_its_sum)),
        (lambda x, m: op("sub", op("mul", x, 2.0), m), (sum_along(1), by_its_sum)),
    ],
    ids=["columns", "apart", "costly", "two operations"],
)
def test_what_costs_more_than_a_load_is_stored(shift, readers):
    definitions, (x, m) = shifted_rows(shift, *readers)
    wanted = [out.name for definition in definitions[1:] for out in outs_of(definition)]
    groups = check(definitions, wanted, random_inputs(0, x, m))
    assert any(out.name == "d" for group in groups for out in group.outs) or "d" in groups[0].private


def test_what_a_kernel_keeps_to_itself_fits_the_cache():
    x, y = buffer("x", 6, 5, 40), buffer("y", 6, 5, 40)
    groups, _ = fuse(softmax(x, y, (6, 5), 40), frozenset(["y"]), replace(MACHINE, private_bytes=40 * 4 - 1))
    assert all("exp" not in group.private for group in groups)


def test_masked_scaled_softmax():
    s, mask, x, y = buffer("s", 6, 8, 8), buffer("mask", 8, 8), buffer("x", 6, 8, 8), buffer("y", 6, 8, 8)
    scaled = pointwise(x, op("add", op("mul", at(s), 0.125), at(mask, I[1], I[2])))
    check([scaled, *softmax(x, y, (6, 8), 8)], ["y"], random_inputs(0, s, mask), groups=1)


def test_softmax_over_a_middle_dimension():
    x, y = buffer("x", 3, 7, 20), buffer("y", 3, 7, 20)
    top, total, powers = buffer("top", 3, 20), buffer("total", 3, 20), buffer("exp", 3, 7, 20)
    definitions = [
        reduce(top, (7,), "max", at(x, I[0], I[2], I[1])),
        pointwise(powers, op("exp", op("sub", at(x), at(top, I[0], I[2])))),
        reduce(total, (7,), "sum", at(powers, I[0], I[2], I[1])),
        pointwise(y, op("div", at(powers), at(total, I[0], I[2]))),
    ]
    check(definitions, ["y"], random_inputs(0, x), groups=1)


def test_layer_norm_is_one_kernel():
    x, w, b, y = buffer("x", 12, 48), buffer("w", 48), buffer("b", 48), buffer("y", 12, 48)
    check(layer_norm(x, w, b, y, (12,), 48), ["y"], random_inputs(0, x, w, b), groups=1)


def test_residual_and_layer_norm_is_one_kernel():
    p, q, x, w, b, y = (buffer(n, 12, 48) if n in "pqxy" else buffer(n, 48) for n in "pqxwby")
    residual = pointwise(x, op("add", at(p), at(q)))
    definitions = [residual, *layer_norm(x, w, b, y, (12,), 48)]
    inputs = random_inputs(0, p, q, w, b)
    (group,) = check(definitions, ["y"], inputs, groups=1)
    assert "x" in group.private
    (group,) = check(definitions, ["x", "y"], inputs, groups=1)
    assert "x" not in group.private


@pytest.mark.parametrize("rows", [(12,), (3, 4), (2, 1)])
@pytest.mark.parametrize("total", ["sum", "max"])
def test_a_loss_behind_a_norm_is_reduced_by_row(rows, total):
    """The loop over the rows keeps nothing but a number of each."""
    x, y, z = (buffer(name, *rows, 48) for name in "xyz")
    w, b, loss = buffer("w", 48), buffer("b", 48), buffer("loss")
    away = op("sub", at(y), at(z))
    definitions = [
        *layer_norm(x, w, b, y, rows, 48),
        reduce(loss, (*rows, 48), total, op("mul", away, away), mean_of(48) if total == "sum" else None),
    ]
    inputs = random_inputs(0, x, w, b, z)
    inputs["x"].flat[5] = math.nan if total == "max" else 3.0
    norm, _ = check(definitions, ["loss"], inputs, groups=2, tolerance=1e-4)
    assert [out.name for out in norm.outs] == ["loss_rows"]


@pytest.mark.parametrize("shape", [(40, 8), (8, 40)])
def test_a_loss_is_not_reduced_by_what_are_no_rows_of_it(shape):
    """Rows that are short, and maxima of other rows than those that are added up."""
    x, top, loss = buffer("x", *shape), buffer("top", shape[0]), buffer("loss")
    other = shape[0] - 1 - I[0] if shape[1] > 16 else I[0]
    definitions = [
        reduce(top, shape[1:], "max", at(x)),
        reduce(loss, shape, "sum", op("sub", at(x), at(top, other))),
    ]
    groups = check(definitions, ["loss"], random_inputs(0, x), tolerance=1e-3)
    assert "loss_rows" not in {out.name for group in groups for out in group.outs}


def test_layer_norm_of_a_reshaped_residual():
    """The residual has three dimensions, the norm sees two."""
    p, q, x = buffer("p", 3, 4, 48), buffer("q", 3, 4, 48), buffer("x", 3, 4, 48)
    w, b, y, mean = buffer("w", 48), buffer("b", 48), buffer("y", 12, 48), buffer("mean", 12)
    place = (I[0] // 4, I[0] % 4, I[1])
    definitions = [
        pointwise(x, op("add", at(p), at(q))),
        reduce(mean, (48,), "sum", at(x, *place), mean_of(48)),
        pointwise(
            y, op("add", op("mul", op("sub", at(x, *place), at(mean, I[0])), at(w, I[1])), at(b, I[1]))
        ),
    ]
    check(definitions, ["y"], random_inputs(0, p, q, w, b), groups=1)


def test_group_norm_splits_the_channel_axis():
    n, c, hw, groups = 2, 8, 30, 4
    x, y, mean, w = buffer("x", n, c, hw), buffer("y", n, c, hw), buffer("mean", n, groups), buffer("w", c)
    per = c // groups
    definitions = [
        reduce(mean, (per, hw), "sum", at(x, I[0], I[1] * per + I[2], I[3]), mean_of(per * hw)),
        pointwise(y, op("mul", op("sub", at(x), at(mean, I[0], I[1] // per)), at(w, I[1]))),
    ]
    check(definitions, ["y"], random_inputs(0, x, w), groups=1)


def test_two_reductions_of_one_input_share_a_loop():
    x, a, b = buffer("x", 6, 40), buffer("a", 6), buffer("b", 6)
    definitions = [reduce(a, (40,), "sum", at(x)), reduce(b, (40,), "sum", op("mul", at(x), at(x)))]
    check(definitions, ["a", "b"], random_inputs(0, x), groups=1, tolerance=1e-4)


def test_batch_statistics():
    n, c, hw = 4, 6, 25
    x, y, mean = buffer("x", n, c, hw), buffer("y", n, c, hw), buffer("mean", c)
    definitions = [
        reduce(mean, (n, hw), "sum", at(x, I[1], I[0], I[2]), mean_of(n * hw)),
        pointwise(y, op("sub", at(x), at(mean, I[1]))),
    ]
    check(definitions, ["y"], random_inputs(0, x), groups=1)


def test_rows_that_mix_are_not_fused():
    """y[i, j] subtracts the maximum of another row."""
    x, y, top = buffer("x", 8, 8), buffer("y", 8, 8), buffer("top", 8)
    definitions = [reduce(top, (8,), "max", at(x)), pointwise(y, op("sub", at(x), at(top, 7 - I[0])))]
    check(definitions, ["y"], random_inputs(0, x), groups=2)


def test_a_total_over_many_values_is_not_fused_with_its_use():
    x, y, total = buffer("x", 400, 400), buffer("y", 400, 400), buffer("total")
    definitions = [reduce(total, (400, 400), "sum", at(x)), pointwise(y, op("div", at(x), at(total)))]
    definitions[1] = pointwise(y, op("div", at(x), Load(total, ())))
    definitions[0] = reduce(total, (400, 400), "sum", at(x, I[0], I[1]))
    check(definitions, ["y"], random_inputs(0, x), groups=2, tolerance=1e-2)


def test_mse():
    p, q, d, s = buffer("p", 200), buffer("q", 200), buffer("d", 200), buffer("s")
    definitions = [
        pointwise(d, op("sub", at(p), at(q))),
        reduce(s, (200,), "sum", op("mul", at(d, I[0]), at(d, I[0])), mean_of(200)),
    ]
    check(definitions, ["s"], random_inputs(0, p, q), groups=1)


def test_order_of_groups_respects_what_is_between():
    """z needs a matrix product of y, so it cannot join the group that makes y."""
    x, y, w, c, z = (buffer(name, 8, 8) for name in "xywcz")
    definitions = [
        pointwise(y, op("exp", at(x))),
        linear(c, y, w, 8, 8, 8),
        pointwise(z, op("add", at(y), at(c))),
    ]
    check(definitions, ["y", "z"], random_inputs(0, x, w), kinds=["pointwise", "gemm"])
    check(definitions, ["y", "c", "z"], random_inputs(0, x, w), kinds=["pointwise", "gemm", "pointwise"])


# --- epilogues --------------------------------------------------------------------------------------------------------


def test_gelu_and_residual_are_epilogues():
    x, w, bias, r, c, g, y = (
        buffer("x", 6, 16),
        buffer("w", 24, 16),
        buffer("bias", 24),
        buffer("r", 2, 3, 24),
        buffer("c", 6, 24),
        buffer("g", 6, 24),
        buffer("y", 2, 3, 24),
    )
    definitions = [
        linear(c, x, w, 6, 24, 16, op("add", ACC, at(bias, I[1]))),
        pointwise(g, gelu(at(c))),
        pointwise(y, op("add", at(g, I[0] * 3 + I[1], I[2]), at(r))),
    ]
    (group,) = check(definitions, ["y"], random_inputs(0, x, w, bias, r), kinds=["gemm"], tolerance=1e-4)
    assert group.definitions[0].out.name == "y"


def test_splitting_heads_is_a_store_index():
    x, w, c, y = buffer("x", 6, 16), buffer("w", 24, 16), buffer("c", 6, 24), buffer("y", 3, 6, 8)
    definitions = [linear(c, x, w, 6, 24, 16), pointwise(y, at(c, I[1], I[0] * 8 + I[2]))]
    (group,) = check(definitions, ["y"], random_inputs(0, x, w), kinds=["gemm"], tolerance=1e-4)
    gemm = group.definitions[0]
    assert isinstance(gemm, Gemm) and [str(p) for p in gemm.index] == ["i1//8", "i0", "i1%8"]


def test_a_transposing_store_is_no_epilogue():
    x, w, c, y = buffer("x", 6, 16), buffer("w", 24, 16), buffer("c", 6, 24), buffer("y", 24, 6)
    definitions = [linear(c, x, w, 6, 24, 16), pointwise(y, at(c, I[1], I[0]))]
    check(definitions, ["y"], random_inputs(0, x, w), kinds=["gemm", "pointwise"], tolerance=1e-4)


def test_half_of_a_product_is_no_epilogue():
    x, w, c, y = buffer("x", 6, 16), buffer("w", 24, 16), buffer("c", 6, 24), buffer("y", 6, 12)
    definitions = [
        linear(c, x, w, 6, 24, 16),
        pointwise(y, op("mul", at(c), op("sigmoid", at(c, I[0], I[1] + 12)))),
    ]
    check(definitions, ["y"], random_inputs(0, x, w), kinds=["gemm", "pointwise"], tolerance=1e-4)


def test_two_readers_keep_the_product():
    x, w, c, y, z = (buffer(name, 8, 8) for name in "xwcyz")
    definitions = [
        linear(c, x, w, 8, 8, 8),
        pointwise(y, op("exp", at(c))),
        pointwise(z, op("add", at(c), at(x))),
    ]
    check(definitions, ["y", "z"], random_inputs(0, x, w), kinds=["gemm", "pointwise"], tolerance=1e-3)


def test_an_operand_is_not_inlined_into_a_product():
    x, a, w, c = (buffer(name, 8, 8) for name in "xawc")
    definitions = [pointwise(a, op("neg", at(x))), linear(c, a, w, 8, 8, 8)]
    check(definitions, ["c"], random_inputs(0, x, w), kinds=["pointwise", "gemm"], tolerance=1e-4)


# --- externs ----------------------------------------------------------------------------------------------------------


def test_writes_of_externs_stay_behind_reads():
    x, y, z = buffer("x", 4), buffer("y", 4), buffer("z", 4)
    view = View(x, x.shape, x.strides, as_index(0))
    write = Extern((), "aten::copy_.default", (view, View(y, y.shape, y.strides, as_index(0))), (), (0,))
    definitions = [pointwise(y, op("add", at(x), 1.0)), pointwise(z, op("add", at(x), 2.0)), write]
    groups, _ = fuse(definitions, frozenset(["z"]), MACHINE)
    assert [group.kind for group in groups] == ["pointwise", "pointwise", "extern"]


def test_externs_keep_what_they_read():
    x, y, z = buffer("x", 4), buffer("y", 4), buffer("z", 4)
    call = Extern((z,), "aten::relu.default", (View(y, y.shape, y.strides, as_index(0)),))
    groups, decisions = fuse([pointwise(y, op("exp", at(x))), call], frozenset(["z"]), MACHINE)
    assert [group.kind for group in groups] == ["pointwise", "extern"]
    assert groups[0].outs == (y,) and groups[1].reads == {"y"}
    assert any("ATen call" in decision.reason for decision in decisions)


# --- size -------------------------------------------------------------------------------------------------------------


def test_large_graphs_take_near_linear_time():
    import sys

    def network(layers):
        x = buffer("x0", 8, 16)
        definitions = []
        for n in range(layers):
            w, b, c = buffer("w", 16), buffer("b", 16), buffer(f"c{n}", 8, 16)
            y, nxt = buffer(f"y{n}", 8, 16), buffer(f"x{n + 1}", 8, 16)
            definitions += layer_norm(x, w, b, y, (8,), 16, f"n{n}")
            definitions.append(linear(c, y, buffer("m", 16, 16), 8, 16, 16))
            definitions.append(pointwise(nxt, op("add", gelu(at(c)), at(x))))
            x = nxt
        return definitions, x.name

    calls = {}
    for layers in (10, 40):
        definitions, out = network(layers)
        count = 0

        def counting(frame, event, arg):
            nonlocal count
            count += event == "call"

        sys.setprofile(counting)
        try:
            groups, _ = fuse(definitions, frozenset([out]), MACHINE)
        finally:
            sys.setprofile(None)
        calls[layers] = count
        assert len(groups) == 2 * layers
    assert calls[40] < 4.4 * calls[10]


def test_apart_joins_nothing_and_drops_what_nobody_needs():
    x, y = buffer("x", 8, 16), buffer("y", 8, 16)
    unused = pointwise(buffer("unused", 8, 16), op("exp", at(x)))
    definitions = [*softmax(x, y, (8,), 16), unused]
    groups, decisions = apart(definitions, frozenset(["y"]), MACHINE)
    assert [len(group.definitions) for group in groups] == [1, 1, 1, 1] and not decisions
    assert not any(group.private for group in groups)
    assert len(fuse(definitions, frozenset(["y"]), MACHINE)[0]) == 1
    check(definitions, ["y"], random_inputs(0, x), fusing=apart)


def test_random_pipelines():
    """Random chains of Maps and Reduces with random outputs compute the same after fusion."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows, n = int(rng.integers(1, 6)), int(rng.integers(1, 20))
        full, thin = [buffer("x", rows, n)], []
        definitions = []
        for number in range(int(rng.integers(2, 9))):
            choice = rng.integers(0, 4)
            source = full[rng.integers(0, len(full))]
            if choice == 0:
                out = buffer(f"r{number}", rows)
                how = ["sum", "max", "min"][rng.integers(0, 3)]
                definitions.append(reduce(out, (n,), how, at(source), None if how != "sum" else mean_of(n)))
                thin.append(out)
                continue
            out = buffer(f"m{number}", rows, n)
            if choice == 1 and thin:
                other = at(thin[rng.integers(0, len(thin))], I[0])
                value = op(["sub", "mul", "add"][rng.integers(0, 3)], at(source), other)
            elif choice == 2:
                value = op("tanh", at(source))
            else:
                value = op("add", at(source), at(full[rng.integers(0, len(full))]))
            definitions.append(pointwise(out, value))
            full.append(out)
        names = [definition.out.name for definition in definitions]
        outputs = {names[-1], *(name for name in names if rng.random() < 0.3)}
        check(definitions, outputs, random_inputs(seed, full[0]), tolerance=1e-4)
        check(definitions, outputs, random_inputs(seed, full[0]), tolerance=1e-4, fusing=apart)
