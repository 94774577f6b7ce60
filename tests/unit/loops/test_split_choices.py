"""Vector loops over concatenations become one loop a piece, where pieces are long enough."""

from __future__ import annotations

import random

import pytest
from loops_build import MACHINE, I, at, buffer, check, op, pointwise, random_inputs

from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.ir.index import as_index
from lampwork.loops.ir.nodes import Const, IndexValue, Load, Loop
from lampwork.loops.ir.printing import format_kernel
from lampwork.loops.schedule.schedule import schedule
from lampwork.loops.schedule.split_choices import MOST_PARTS
from lampwork.lower import exprs as e


def concatenation(pieces, axis):
    """The pieces one after another along `axis`, as lowering writes it."""
    value = None
    end = sum(piece.shape[axis].as_int() for piece in pieces)
    for piece in reversed(pieces):
        start = end - piece.shape[axis].as_int()
        point = list(I[: len(piece.shape)])
        point[axis] = I[axis] - start
        load = Load(piece, tuple(point), e.inside(I[axis], start or None, None if value is None else end))
        test = e.test("lt", IndexValue(I[axis], "i64"), Const(end, "i64"))
        value = load if value is None else e.where(test, load, value)
        end = start
    return value


def kernel_of(definition):
    groups, _ = fuse([definition], frozenset((definition.out.name,)), MACHINE)
    (kernel,) = [kernel for group in groups for kernel in schedule(group, "k", MACHINE)]
    return kernel


def loops_of(kernel):
    (rows,) = kernel.body
    return [stmt for stmt in rows.body if isinstance(stmt, Loop)]


def pieces_of(*sizes, rows=5):
    return [buffer(f"x{n}", rows, size) for n, size in enumerate(sizes)]


def test_each_piece_is_read_by_its_own_loop():
    pieces = pieces_of(64, 32, 32)
    y, s = buffer("y", 5, 128), buffer("s", 128)
    scaled = pointwise(y, op("mul", concatenation(pieces, 1), at(s, I[1])))
    check([scaled], ["y"], random_inputs(0, *pieces, s))
    kernel = kernel_of(scaled)
    assert [loop.axis.extent.as_int() for loop in loops_of(kernel)] == [64, 32, 32]
    text = format_kernel(kernel)
    assert "where" not in text and " if " not in text


@pytest.mark.parametrize(
    "sizes", [(64, 3, 32), (16,) * (MOST_PARTS + 1)], ids=["a piece below a vector", "too many pieces"]
)
def test_other_concatenations_stay_one_loop(sizes):
    pieces, y = pieces_of(*sizes), buffer("y", 5, sum(sizes))
    copy = pointwise(y, concatenation(pieces, 1))
    check([copy], ["y"], random_inputs(0, *pieces), tolerance=0)
    assert len(loops_of(kernel_of(copy))) == 1


def test_choices_by_another_axis_stay():
    pieces = [buffer("x0", 3, 40), buffer("x1", 4, 40)]
    y, s = buffer("y", 7, 40), buffer("s", 40)
    scaled = pointwise(y, op("mul", concatenation(pieces, 0), at(s, I[1])))
    check([scaled], ["y"], random_inputs(0, *pieces, s))
    assert len(loops_of(kernel_of(scaled))) == 1


def test_choices_within_a_part_and_of_both_kinds():
    """`ge` beside `lt`, shifted positions, and a test against data stay right."""
    x, y = buffer("x", 6, 80), buffer("y", 6, 80)
    late = e.test("ge", IndexValue(I[1] + 8, "i64"), Const(40, "i64"))
    never = e.test("lt", IndexValue(I[1], "i64"), Const(-3, "i64"))
    data = e.test("lt", at(x), Const(0.0, "f32"))
    value = e.where(late, e.where(data, at(x), op("exp", at(x))), e.where(never, at(x), op("neg", at(x))))
    chosen = pointwise(y, value)
    check([chosen], ["y"], random_inputs(0, x))
    assert [loop.axis.extent.as_int() for loop in loops_of(kernel_of(chosen))] == [32, 48]


@pytest.mark.parametrize("seed", range(12))
def test_random_concatenations(seed):
    source = random.Random(seed)
    sizes = [source.choice([1, 7, 16, 17, 32, 48, 65]) for _ in range(source.randint(1, MOST_PARTS))]
    pieces, y = pieces_of(*sizes, rows=source.randint(1, 4)), buffer("y", 1, 1)
    rows = pieces[0].shape[0].as_int()
    y = buffer("y", rows, sum(sizes))
    s = buffer("s", sum(sizes))
    made = pointwise(y, op("add", concatenation(pieces, 1), at(s, as_index(I[1]))))
    check([made], ["y"], random_inputs(seed, *pieces, s))
