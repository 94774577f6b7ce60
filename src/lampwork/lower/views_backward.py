"""Gradients of views: zeros, with what is given in its place."""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.graph.dims import slice_bounds
from lampwork.graph.shapes_common import wrap_dim
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context
from lampwork.lower.registry import Registry

rules = Registry()


@rules.lowers("slice_backward")
def slice_(
    ctx: Context, grad: Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Array:
    dim = wrap_dim(dim, grad.rank)
    first, last = slice_bounds(input_sizes[dim], start, end)
    axis = AXES[dim]
    mask = e.inside(axis, first if first else None, last if last < input_sizes[dim] else None)
    if step > 1:
        # Before `first` the remainder of a negative number is taken, which the mask leaves out.
        mask = e.both(mask, e.test("eq", e.index_value((axis - first) % step), e.const(0, "i64")))
    if 0 in grad.shape:
        return ctx.result(e.const(0, ctx.dtype))
    place = (axis - first) // step if step > 1 else axis - first
    return ctx.result(at(grad, [*AXES[:dim], place, *AXES[dim + 1 : grad.rank]], mask))


@rules.lowers("select_backward")
def select(ctx: Context, grad: Array, input_sizes: Sequence[int], dim: int, index: int) -> Array:
    rank = grad.rank + 1
    dim = wrap_dim(dim, rank)
    place = index + input_sizes[dim] if index < 0 else index
    chosen = e.test("eq", e.index_value(AXES[dim]), e.const(place, "i64"))
    return ctx.result(at(grad, [*AXES[:dim], *AXES[dim + 1 : rank]], chosen))


@rules.lowers("diagonal_backward")
def diagonal(
    ctx: Context, grad: Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Array:
    rank = grad.rank + 1
    dim1, dim2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    rest = [AXES[dim] for dim in range(rank) if dim not in (dim1, dim2)]
    on_diagonal = e.test("eq", e.index_value(AXES[dim2] - AXES[dim1]), e.const(offset, "i64"))
    return ctx.result(at(grad, [*rest, AXES[dim1] - max(-offset, 0)], on_diagonal))
