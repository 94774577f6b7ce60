"""sort and topk of rows, by operators of the runtime (csrc/sorting.cpp).

They sort along the last dimension of contiguous tensors. Other dimensions come last first, in a copy.
"""

from __future__ import annotations

from lampwork.graph.shapes_common import wrap_dim
from lampwork.graph.symbols import hint_of
from lampwork.lower import extern
from lampwork.lower.arrays import Array
from lampwork.lower.context import Context
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import permute

rules = Registry()

_FEW = 16


def _swapped(x: Array, dim: int) -> Array:
    """The dimension last, in place of the last one."""
    order = list(range(x.rank))
    order[dim], order[-1] = order[-1], order[dim]
    return permute(x, order)


def _rows(ctx: Context, target: str, x: Array, dim: int, size: int, *args: bool | int) -> tuple[Array, Array]:
    """Values and places that an operator makes of the rows along `dim`, `size` of each."""
    if x.dtype == "bool" or x.rank == 0 or 0 in x.shape or size == 0:
        raise NotExpressible(f"{x.dtype}, or no rows")
    dim = wrap_dim(dim, x.rank)
    rows = _swapped(x, dim)
    shape = (*rows.shape[:-1], size)
    values, places = ctx.buffer(shape, x.dtype, hint="values"), ctx.buffer(shape, "i64", hint="indices")
    extern.emit(ctx, f"lampwork::{target}.default", (rows, *args), (values.buffer, places.buffer))
    return _swapped(values, dim), _swapped(places, dim)


@rules.lowers("sort")
def sort(ctx: Context, x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    size = x.shape[wrap_dim(dim, x.rank)] if x.rank else 1
    if hint_of(size) <= _FEW:
        raise NotExpressible("rows of few elements, which ATen inserts one after another faster")
    return _rows(ctx, "sort", x, dim, size, descending, False, 1 in ctx.wanted)


@rules.lowers("sort.stable")
def sort_stable(
    ctx: Context, x: Array, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    size = x.shape[wrap_dim(dim, x.rank)] if x.rank else 1
    return _rows(ctx, "sort", x, dim, size, descending, bool(stable), 1 in ctx.wanted)


@rules.lowers("topk")
def topk(
    ctx: Context,
    x: Array,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Array, Array]:
    if not sorted:
        raise NotExpressible("an order that only ATen knows")
    return _rows(ctx, "topk", x, dim, k, k, largest)
