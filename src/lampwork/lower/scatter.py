"""Elements put or added at places from data, by operators of the runtime (csrc/scattering.cpp).

Which of the elements that land on one place is added first is theirs to say: they keep the order of the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lampwork.graph.shapes_common import wrap_dim
from lampwork.loops.ir.nodes import Const, Map
from lampwork.lower import extern
from lampwork.lower.arrays import Array
from lampwork.lower.context import Context
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import expand_to

rules = Registry()

_DTYPES = ("f32", "f64", "i64")
_REDUCTIONS = ("sum", "prod", "amax", "amin")


def _spread(ctx: Context, x: Array) -> Array:
    """x; if it is one number everywhere, that, expanded: the operator fills its result then, and copies nothing."""
    made = next((each for each in ctx.main if isinstance(each, Map) and each.out == x.buffer), None)
    if made is None or not isinstance(made.value, Const) or made.onto is not None:
        return x
    return expand_to(ctx.map((), made.value, hint="fill"), x.shape)


def _called(ctx: Context, target: str, x: Array, *args: Any) -> Array:
    if x.dtype not in _DTYPES or x.rank == 0 or 0 in x.shape:
        raise NotExpressible(f"{x.dtype}, or nothing to write to")
    out = ctx.buffer(ctx.spec.shape, ctx.dtype)
    extern.emit(ctx, f"lampwork::{target}.default", (_spread(ctx, x), *args), (out.buffer,))
    return out


def _check(x: Array, index: Array, source: Array | None = None) -> None:
    if index.dtype != "i64" or 0 in index.shape or (source is not None and source.dtype != x.dtype):
        raise NotExpressible(f"an index of {index.dtype}, or of no elements, or values of another dtype")


@rules.lowers("index_add")
def index_add(ctx: Context, x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1) -> Array:
    if alpha != 1 or index.rank != 1:
        raise NotExpressible("a factor, or an index that is a number")
    _check(x, index, source)
    dim = wrap_dim(dim, x.rank) if x.rank == 1 else _not_last(x, dim)
    return _called(ctx, "index_add", x, dim, index, source)


@rules.lowers("index_put")
def index_put(
    ctx: Context, x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    given = [index for index in indices if index is not None]
    if len(given) != len(indices):
        raise NotExpressible("whole dimensions before those that are indexed")
    for index in given:
        _check(x, index, values)
    return _called(ctx, "index_put", x, given, values, accumulate)


@rules.lowers("scatter_add")
def scatter_add(ctx: Context, x: Array, dim: int, index: Array, source: Array) -> Array:
    _check(x, index, source)
    return _called(ctx, "scatter_add", x, _not_last(x, dim), index, source)


@rules.lowers("scatter_reduce.two")
def scatter_reduce(
    ctx: Context, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    if not include_self or reduce not in _REDUCTIONS:
        raise NotExpressible("a mean, or values that replace what is there before they are reduced")
    _check(x, index, source)
    dim = wrap_dim(dim, x.rank) if reduce in ("amax", "amin") else _not_last(x, dim)
    return _called(ctx, "scatter_reduce", x, dim, index, source, reduce)


def _not_last(x: Array, dim: int) -> int:
    dim = wrap_dim(dim, x.rank)
    if dim == x.rank - 1:
        raise NotExpressible("single elements that are added: ATen's loop is as fast")
    return dim


@rules.lowers("scatter.value")
def scatter_value(ctx: Context, x: Array, dim: int, index: Array, value: float) -> Array:
    _check(x, index)
    return _called(ctx, "scatter_value", x, wrap_dim(dim, x.rank), index, value)
