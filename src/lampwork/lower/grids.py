"""Grids of places at which an image is sampled."""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context
from lampwork.lower.creation import spaced
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import reshape

rules = Registry()


def _middles(ctx: Context, size: int, corners: bool, dtype: DType) -> Array:
    """Where the elements of a dimension lie between -1 and 1: the outermost at the ends, or half an element inside."""
    place: Expr = e.const(0, dtype) if size == 1 else spaced(-1, 1, size, dtype)
    if not corners:
        place = e.mul(place, e.const((size - 1) / size, dtype))
    return ctx.map((size,), place, hint="middles")


@rules.lowers("affine_grid_generator")
def affine_grid(ctx: Context, theta: Array, size: Sequence[int], align_corners: bool) -> Array:
    """
    before: y[n, i, j, c] = t[n, c, 0] x[j] + t[n, c, 1] y[i] + t[n, c, 2]
    after:  row[n, 2 j + c] = t[n, c, 0] x[j] + t[n, c, 2]; column[n, i, c] = t[n, c, 1] y[i];
            y[n, i, 2 j + c] = row[n, 2 j + c] + column[n, i, c]

    Of a grid in three dimensions likewise: a row, and a sum of products that all of its elements share.
    """
    if theta.dtype not in ("f32", "f64") or any(type(each) is not int for each in ctx.spec.shape[1:]):
        raise NotExpressible("coordinates of half precision, which eager rounds, or sizes that are open")
    if 0 in ctx.spec.shape or not ctx.spec.is_contiguous:
        raise NotExpressible("a grid without elements, or one that is not contiguous")
    dtype, (images, *outer, width, count) = theta.dtype, ctx.spec.shape
    middles = [_middles(ctx, each, align_corners, dtype) for each in (*outer, width)]
    image, last = AXES[0], AXES[len(outer) + 1]

    def factor(coordinate: Index, number: int) -> Expr:
        return at(theta, [image, coordinate, Index.const(number)])

    place = at(middles[-1], [AXES[1] // count])
    row = e.fma(factor(AXES[1] % count, 0), place, factor(AXES[1] % count, count))
    rows = ctx.map((images, width * count), row, hint="rows")
    shared: Expr | None = None
    inmost_first = zip(reversed(AXES[1 : len(outer) + 1]), reversed(middles[:-1]), strict=True)
    for number, (axis, middle) in enumerate(inmost_first):
        scale, place = factor(last, number + 1), at(middle, [axis])
        shared = e.mul(scale, place) if shared is None else e.fma(scale, place, shared)
    assert shared is not None, "a grid has two dimensions at least"
    columns = ctx.map((images, *outer, count), shared, hint="columns")
    point = [*AXES[: len(outer) + 1], last % count]
    flat = ctx.map((images, *outer, width * count), e.add(at(rows, [image, last]), at(columns, point)))
    return reshape(flat, ctx.spec.shape)
