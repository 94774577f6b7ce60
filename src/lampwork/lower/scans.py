"""Running sums, products and extrema."""

from __future__ import annotations

from typing import Literal

import torch

from lampwork.graph.shapes_common import wrap_dim
from lampwork.graph.symbols import hint_of
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Expr, Scan
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, axes_of, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, compute_dtype
from lampwork.lower.reduce import value_of
from lampwork.lower.registry import NotExpressible, Registry, Rule

rules = Registry()
ScanOp = Literal["sum", "prod", "max", "min"]

_LANES = 16
"""Rows side by side from which a scan in vectors beats ATen's, which goes through them one after another."""


def _scanned(ctx: Context, out: Array, dim: int, op: ScanOp, value: Expr) -> Array:
    """`out`, filled with `op` of `value` along `dim`."""
    axes = axes_of(out.shape)
    outer = (*axes[:dim], *axes[dim + 1 :])
    ctx.emit(Scan(out.buffer, outer, axes[dim], out.index, op, value))
    return out


# --- sums and products ------------------------------------------------------------------------------------------------


def _accumulated(ctx: Context, x: Array, dim: int, op: ScanOp) -> Array:
    """Floats run in f64, as eager's accumulator does, and are rounded where they are stored."""
    if x.rank == 0:
        return ctx.result(read(x, ()))
    value = e.cast(value_of(x, ctx.dtype), "f64" if ctx.dtype in FLOATS else "i64")
    return _scanned(
        ctx, ctx.buffer(ctx.spec.shape, ctx.dtype, ctx.spec.strides), wrap_dim(dim, x.rank), op, value
    )


@rules.lowers("cumsum")
def cumsum(ctx: Context, x: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
    return _accumulated(ctx, x, dim, "sum")


@rules.lowers("cumprod")
def cumprod(ctx: Context, x: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
    return _accumulated(ctx, x, dim, "prod")


# --- extrema ----------------------------------------------------------------------------------------------------------


def _extrema(op: ScanOp) -> Rule:
    def rule(ctx: Context, x: Array, dim: int) -> tuple[Array, Array]:
        """Of equal elements the last counts, and nan beats all others:

        best[i] = op of x up to i; place[i] = the largest j up to i with x[j] == best[j], or nan; value[i] = x[place[i]]
        """
        if x.dtype not in (*FLOATS, "i64", "i32") or x.rank == 0 or 0 in x.shape:
            raise NotExpressible(f"{x.dtype}, or no elements")
        dim = wrap_dim(dim, x.rank)
        is_slow = dim == x.rank - 1 or hint_of(x.shape[-1]) < _LANES
        if is_slow and not ctx.standalone:
            raise NotExpressible("rows that run along the scan: ATen is as fast")
        wide = compute_dtype(x.dtype) if x.dtype in FLOATS else x.dtype
        element = value_of(x, wide)
        best = _scanned(ctx, ctx.buffer(x.shape, x.dtype, hint="best"), dim, op, element)
        counts = e.test("eq", element, value_of(best, wide))
        if x.dtype in FLOATS:
            counts = e.test("or", counts, e.test("isnan", element))
        place = e.where(counts, e.index_value(AXES[dim]), e.const(0, "i64"))
        places = _scanned(ctx, ctx.buffer(x.shape, "i64", hint="indices"), dim, "max", place)
        if x.dtype not in FLOATS or 0 not in ctx.wanted:
            return best, places
        # Zeros are equal, and nans are not alike: the element itself has the right bits.
        found = Index.indirect(read(places, x.shape), x.shape[dim])
        value = at(x, [*AXES[:dim], found, *AXES[dim + 1 : x.rank]])
        return ctx.map(x.shape, value, hint="values"), places

    return rule


rules.add("cummax", _extrema("max"))
rules.add("cummin", _extrema("min"))
