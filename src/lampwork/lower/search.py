"""Places of values among sorted boundaries, by an operator of the runtime (csrc/searching.cpp)."""

from __future__ import annotations

from lampwork.lower import extern
from lampwork.lower.arrays import Array
from lampwork.lower.context import Context
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()

_DTYPES = ("f32", "f64", "i64", "i32")


@rules.lowers("bucketize.Tensor")
def bucketize(
    ctx: Context, x: Array, boundaries: Array, *, out_int32: bool = False, right: bool = False
) -> Array:
    return searchsorted(ctx, boundaries, x, out_int32=out_int32, right=right)


@rules.lowers("searchsorted.Tensor")
def searchsorted(
    ctx: Context,
    boundaries: Array,
    x: Array,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    """Boundaries of one dimension are those of all values, others lie in rows, each with a row of values."""
    if sorter is not None or x.dtype not in _DTYPES or x.dtype != boundaries.dtype:
        raise NotExpressible(
            f"values of {x.dtype} among {boundaries.dtype}, or boundaries that are not in order"
        )
    out = ctx.buffer(ctx.spec.shape, ctx.dtype)
    args = (boundaries, x, out_int32, right or side == "right")
    extern.emit(ctx, "lampwork::searchsorted.default", args, (out.buffer,))
    return out
