"""Scheduling: kernels compute what the definitions say, and have the shape they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loops_build import (
    ACC,
    MACHINE,
    I,
    at,
    axes,
    buffer,
    check,
    mean_of,
    op,
    pointwise,
    random_inputs,
    reduce,
)

from lampwork.codegen.gpu.nvidia import describe
from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.kernel import iteration_work, parallel_extent, statements
from lampwork.loops.ir.nodes import Axis, Buffer, Const, IndexValue, Load, Loop, Map, Reduce, ReduceLoop, Scan
from lampwork.loops.schedule.schedule import schedule
from lampwork.loops.schedule.split_reduce import split_reduction


def kernels_of(*definitions):
    groups, _ = fuse(definitions, frozenset(definition.out.name for definition in definitions), MACHINE)
    return [kernel for n, group in enumerate(groups) for kernel in schedule(group, f"k{n}", MACHINE)]


def test_contiguous_pointwise_is_one_flat_loop():
    x, y = buffer("x", 3, 4, 5), buffer("y", 3, 4, 5)
    add = pointwise(y, op("add", at(x), at(x)))
    check([add], ["y"], random_inputs(0, x))
    (kernel,) = kernels_of(add)
    (loop,) = kernel.body
    assert isinstance(loop, Loop) and loop.kind == "parallel-vector"
    assert loop.axis.extent == as_index(60)
    assert [p.name for p in kernel.params] == ["x", "y"]


def test_equal_strides_of_any_order_are_flat_too():
    x, y = buffer("x", 3, 4, 5, strides=(1, 15, 3)), buffer("y", 3, 4, 5, strides=(1, 15, 3))
    add = pointwise(y, op("exp", at(x)))
    check([add], ["y"], random_inputs(0, x))
    (kernel,) = kernels_of(add)
    assert kernel.body[0].kind == "parallel-vector"


def test_broadcast():
    x, b, y = buffer("x", 6, 40), buffer("b", 40), buffer("y", 6, 40)
    add = pointwise(y, op("add", at(x), at(b, I[1])))
    check([add], ["y"], random_inputs(0, x, b))
    (kernel,) = kernels_of(add)
    assert kernel.body[0].kind == "parallel" and kernel.body[0].body[0].kind == "vector"


@pytest.mark.parametrize("shape", [(32, 48), (7, 37), (3, 5), (64, 16)])
def test_transpose_is_blocked(shape):
    m, n = shape
    x, y = buffer("x", m, n), buffer("y", n, m)
    copy = pointwise(y, at(x, I[1], I[0]))
    check([copy], ["y"], random_inputs(0, x), tolerance=0)


def test_few_blocks_are_cut_for_the_threads():
    x, y = buffer("x", 24, 320), buffer("y", 320, 24)
    copy = pointwise(y, at(x, I[1], I[0]))
    check([copy], ["y"], random_inputs(0, x), tolerance=0)
    (kernel,) = kernels_of(copy)
    assert parallel_extent(kernel).as_int() >= 16


def test_permute_of_heads():
    x, y = buffer("x", 2, 9, 4, 16), buffer("y", 2, 4, 9, 16)
    copy = pointwise(y, at(x, I[0], I[2], I[1], I[3]))
    check([copy], ["y"], random_inputs(0, x), tolerance=0)


def test_head_split_through_division():
    """y[m, n // 8, n % 8] written from x[m, n]: the axis is split, so that no division is left."""
    x, y = buffer("x", 9, 32), buffer("y", 4, 9, 8)
    copy = Map(y, axes(9, 32), (I[1] // 8, I[0], I[1] % 8), at(x))
    check([copy], ["y"], random_inputs(0, x), tolerance=0)
    (kernel,) = kernels_of(copy)
    assert "//8" not in str(kernel).replace(" ", "")


def test_scalar():
    x, y = buffer("x"), buffer("y")
    check([pointwise(y, op("exp", at(x)))], ["y"], {"x": np.float32(2).reshape(())})


def test_empty():
    x, y = buffer("x", 0, 4), buffer("y", 0, 4)
    check([pointwise(y, op("exp", at(x)))], ["y"], random_inputs(0, x))


@pytest.mark.parametrize("how", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("kind", ["rows", "columns", "all", "middle", "two"])
def test_reductions(how, kind):
    x = buffer("x", 4, 5, 18)
    cases = {
        "rows": (buffer("y", 4, 5), (18,), (I[0], I[1], I[2])),
        "columns": (buffer("y", 5, 18), (4,), (I[2], I[0], I[1])),
        "all": (buffer("y"), (4, 5, 18), (I[0], I[1], I[2])),
        "middle": (buffer("y", 4, 18), (5,), (I[0], I[2], I[1])),
        "two": (buffer("y", 5), (4, 18), (I[1], I[0], I[2])),
    }
    y, over, index = cases[kind]
    check([reduce(y, over, how, at(x, *index))], ["y"], random_inputs(1, x), tolerance=1e-4)


def test_mean_of_rows_is_a_vector_reduction():
    x, y = buffer("x", 6, 40), buffer("y", 6)
    mean = reduce(y, (40,), "sum", at(x), mean_of(40))
    check([mean], ["y"], random_inputs(0, x))
    (kernel,) = kernels_of(mean)
    assert isinstance(kernel.body[0].body[0], ReduceLoop) and kernel.body[0].body[0].kind == "vector"


def test_sum_of_columns_is_a_vector_of_columns():
    x, y = buffer("x", 40, 48), buffer("y", 48)
    total = reduce(y, (40,), "sum", at(x, I[1], I[0]))
    check([total], ["y"], random_inputs(0, x), tolerance=1e-4)
    (kernel,) = kernels_of(total)
    assert kernel.body[0].kind == "parallel-vector" and kernel.body[0].body[0].kind == "serial"


@pytest.mark.parametrize("shape", [(100000,), (1000, 200), (4, 65536)])
def test_large_reductions_have_two_stages(shape):
    x, y = buffer("x", *shape), buffer("y")
    total = reduce(y, shape, "sum", at(x), mean_of(100))
    check([total], ["y"], random_inputs(0, x), tolerance=1e-3)
    assert len(kernels_of(total)) == 2


def test_long_columns_have_two_stages():
    x, y = buffer("x", 4096, 32), buffer("y", 32)
    total = reduce(y, (4096,), "max", at(x, I[1], I[0]))
    check([total], ["y"], random_inputs(0, x))
    first, second = kernels_of(total)
    assert first.params[-1].name == "k0_partial" == second.params[0].name
    assert parallel_extent(first).as_int() >= 64


def test_partial_results_lie_as_the_results_do():
    """Of channels that lie side by side, vectors of them are stored and read again."""
    x, y = buffer("x", 2, 40, 3000, strides=(120000, 1, 40)), buffer("y", 2, 40, 2, strides=(80, 1, 40))
    half = reduce(y, (1500,), "sum", at(x, I[0], I[1], I[2] * 1500 + I[3]), mean_of(1500))
    check([half], ["y"], random_inputs(0, x), tolerance=1e-3)
    _, second = kernels_of(half)
    (loop,) = second.body
    assert loop.kind == "parallel-vector" and loop.body[0].kind == "serial"


@pytest.mark.parametrize("repeated", [False, True])
def test_a_reduced_axis_that_gives_no_chunks_stays_reduced(repeated):
    x, y = buffer("x", 32, 1 if repeated else 13, 13, 32), buffer("y", 32)
    total = reduce(y, (32, 13, 13), "sum", at(x, I[1], 0 if repeated else I[2], I[3], I[0]))
    check([total], ["y"], random_inputs(0, x), tolerance=1e-3)
    assert len(kernels_of(total)) == 2


def test_stages_of_a_reduction_read_each_value_once_fuzz():
    def size(axes):
        return math.prod(axis.extent.as_int() for axis in axes)

    rng = np.random.default_rng(0)
    in_two = 0
    for _ in range(1000):
        over = [int(n) for n in rng.choice([2, 3, 7, 13, 32, 55, 64, 169, 1000, 4099], rng.integers(1, 5))]
        rows = int(rng.choice([1, 8, 32, 256]))
        x, y = buffer("x", *over, rows), buffer("y", rows)
        total = reduce(y, over, "sum", at(x, *I[1 : len(over) + 1], I[0]))
        stages = split_reduction(Group("rows", (total,), total.axes), "k", MACHINE, {})
        if len(stages) == 2:
            (first,), (second,) = (stage.definitions for stage in stages)
            assert size(first.axes) * size(first.over) == rows * math.prod(over)
            assert size(second.axes) * size(second.over) == size(first.axes)
            in_two += 1
    assert in_two > 100


def _gradient_of_batch_norm(pixels, channels):
    """t = masked g; its sum and its product with x - m over the pixels of each channel; what is made of these."""
    shape = (pixels, channels)
    g, x, y, m = buffer("g", *shape), buffer("x", *shape), buffer("y", *shape), buffer("m", channels)
    t, total, dot, slope = (
        buffer("t", *shape),
        *(buffer(name, channels) for name in ("total", "dot", "slope")),
    )
    masked = op("where", op("le", at(x), 0.0, dtype="bool"), Const(0.0, "f32"), at(g))
    here, centred = at(t, I[1], I[0]), op("sub", at(x, I[1], I[0]), at(m))
    definitions = [
        pointwise(t, masked),
        reduce(total, (pixels,), "sum", here),
        reduce(dot, (pixels,), "sum", op("product", here, centred), mean_of(pixels)),
        pointwise(slope, op("mul", at(dot), at(total))),
        pointwise(y, op("sub", at(t), op("mul", at(x), at(slope, I[1])))),
    ]
    return definitions, random_inputs(0, g, x, m)


@pytest.mark.parametrize(
    "shape", [(12544, 64), (3136, 512), (784, 1024), (196, 2048), (5000, 40), (7, 20), (1, 1)]
)
def test_sums_over_the_pixels_of_channels_share_two_stages(shape):
    definitions, inputs = _gradient_of_batch_norm(*shape)
    check(definitions, ["t", "total", "slope", "y"], inputs, tolerance=1e-3)


def test_columns_of_channels_are_gone_down_once():
    """The sums are partial ones, a vector of channels each, made while t is; y is a kernel of its own."""
    definitions, _ = _gradient_of_batch_norm(3136, 512)
    first, second, third = kernels_of(*definitions)
    assert [each.name for each in first.params[-2:]] == ["k0_partial", "k0_partial1"]
    assert first.body[0].kind == "parallel" and first.body[0].body[0].kind == "vector"
    assert {"total", "dot", "slope"} <= {each.name for each in second.params}
    assert third.params[-1].name == "y"


def test_variance_of_deep_columns_is_a_pass_of_its_own():
    x, m, v = buffer("x", 3136, 512), buffer("m", 512), buffer("v", 512)
    centred = op("sub", at(x, I[1], I[0]), at(m))
    definitions = [
        reduce(m, (3136,), "sum", at(x, I[1], I[0]), mean_of(3136)),
        reduce(v, (3136,), "sum", op("product", centred, centred), mean_of(3136)),
    ]
    check(definitions, ["m", "v"], random_inputs(0, x), tolerance=1e-3, groups=2)
    partial = kernels_of(*definitions)[2]
    assert partial.params[-1].name == "k1_partial" and partial.body[0].body[0].kind == "vector"


@pytest.mark.parametrize("shift", [0, 1])
def test_sums_that_read_other_points_stay_in_one_stage(shift):
    x, t, total = buffer("x", 4096, 32), buffer("t", 4096, 32), buffer("total", 32)
    there = at(t, 4095 - I[1] if shift else I[1], I[0])
    copied = Map(t, axes(32, 4096), (I[1], I[0]), op("exp", at(x, I[1], I[0])))
    group = Group("rows", (copied, reduce(total, (4096,), "sum", there)), axes(32))
    assert len(split_reduction(group, "k", MACHINE, {})) == 2 - shift


@pytest.mark.parametrize("kind", ["rows", "columns", "all", "two"])
@pytest.mark.parametrize("how", ["argmax", "argmin"])
def test_positions(kind, how):
    x = buffer("x", 4, 5, 18)
    cases = {
        "rows": (buffer("y", 4, 5, dtype="i64"), (18,), (I[0], I[1], I[2])),
        "columns": (buffer("y", 5, 18, dtype="i64"), (4,), (I[2], I[0], I[1])),
        "all": (buffer("y", dtype="i64"), (4, 5, 18), (I[0], I[1], I[2])),
        "two": (buffer("y", 5, dtype="i64"), (4, 18), (I[1], I[0], I[2])),
    }
    y, over, index = cases[kind]
    inputs = random_inputs(1, x)
    inputs["x"][1, 2, 3] = inputs["x"][3, 1, 3] = np.nan
    inputs["x"][0] = 1.0
    check([reduce(y, over, how, at(x, *index))], ["y"], inputs, tolerance=0)


@pytest.mark.parametrize("how", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("along", [0, 1])
def test_scans(how, along):
    x, y = buffer("x", 5, 24), buffer("y", 5, 24)
    rest = axes(5, 24)[1 - along]
    scan = Scan(y, (rest,), axes(5, 24)[along], (I[0], I[1]), how, at(x))
    check([scan], ["y"], random_inputs(2, x), tolerance=1e-4)
    (kernel,) = kernels_of(scan)
    assert kernel.body[0].kind == ("parallel" if along else "parallel-vector")


def test_strided_pooling_vectorizes_outputs():
    x, y = buffer("x", 2, 32, 32), buffer("y", 2, 16, 16)
    pool = reduce(y, (2, 2), "max", at(x, I[0], I[1] * 2 + I[3], I[2] * 2 + I[4]))
    check([pool], ["y"], random_inputs(3, x), tolerance=0)
    (kernel,) = kernels_of(pool)
    assert kernel.body[0].body[0].kind == "vector"


def test_gather_and_masks():
    table, ids, y = buffer("w", 5, 16), buffer("ids", 3, 4, dtype="i64"), buffer("y", 3, 4, 16)
    row = Index.indirect(at(ids, I[0], I[1]), 5)
    causal = op("ge", IndexValue(I[1], "i64"), IndexValue(I[2], "i64"), dtype="bool")
    value = Load(table, (row, I[2]), causal, -1.0)
    check([pointwise(y, value)], ["y"], random_inputs(4, table, ids), tolerance=0)


def test_symbolic_sizes():
    """The same schedule with a symbol for the rows."""
    s = Index.sym("s")
    from lampwork.loops.ir.nodes import Buffer
    from lampwork.loops.reference.evaluate_kernel import run_kernel

    x = Buffer("x", "f32", (s, as_index(8)), (as_index(8), as_index(1)))
    y = Buffer("y", "f32", (s,), (as_index(1),))
    total = Reduce(y, (Axis("i0", s),), axes(8, first=1), (I[0],), "sum", at(x))
    (kernel,) = schedule(Group("rows", (total,), total.axes), "k", MACHINE)
    assert kernel.sizes == ("s",)
    memory = {"x": np.arange(24, dtype=np.float32), "y": np.zeros(3, np.float32)}
    run_kernel(kernel, memory, sizes={"s": 3})
    np.testing.assert_array_equal(memory["y"], memory["x"].reshape(3, 8).sum(1))


def test_grain_makes_chunks_worth_a_thread():
    x, y = buffer("x", 1 << 20), buffer("y", 1 << 20)
    (kernel,) = kernels_of(pointwise(y, op("add", at(x), at(x))))
    assert 1 <= (iteration_work(kernel).as_int() or 0) <= 16
    assert ACC.dtype == "f32" and Const(1.0, "f32").dtype == "f32"


def test_few_long_columns_have_a_group_of_threads_each():
    """Of a card; a CPU takes columns side by side."""

    def kinds(n, machine):
        x, top = buffer("x", n, 3), Buffer("top", "i64", (as_index(3),), (as_index(1),))
        value, index = at(x, I[0], I[1]), (Index.var("i1"),)
        argmax = Reduce(top, axes(n, 3)[1:], axes(n, 3)[:1], index, "argmax", value)
        groups, _ = fuse([argmax], frozenset({"top"}), machine)
        (kernel,) = schedule(groups[0], "k0", machine)
        return [each.kind for each in statements(kernel.body) if isinstance(each, Loop | ReduceLoop)]

    card = describe(80)
    assert kinds(5000, card) == ["parallel", "vector"]
    assert kinds(200, card) == kinds(5000, MACHINE) == ["parallel-vector", "serial"]
