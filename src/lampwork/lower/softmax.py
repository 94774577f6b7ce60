"""softmax and log_softmax: a row's maximum, its exponentials, their sum, and the quotients."""

from __future__ import annotations

import torch

from lampwork.graph.shapes_common import wrap_dim
from lampwork.loops.ir.nodes import Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, read
from lampwork.lower.context import Context, keep
from lampwork.lower.dtypes import compute_dtype
from lampwork.lower.reduce import reduce_value, value_of
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()


def _shifted(ctx: Context, x: Array, dim: int) -> tuple[Array, Array]:
    """(x - max over dim, the maxima), in the compute type. Rows without elements are left to ATen."""
    if x.numel == 0:
        raise NotExpressible("softmax of no elements")
    value = value_of(x, compute_dtype(ctx.dtype))
    top = keep(reduce_value(ctx, "max", x.shape, [dim], value, hint="max"), x.shape, [dim])
    return ctx.map(x.shape, e.sub(value, read(top, x.shape)), hint="shifted"), top


def shares(ctx: Context, powers: Array, dim: int) -> Expr:
    """powers / sum(powers) over `dim`, of powers of e whose largest in each row is 1.

    By one reciprocal a row, as divisions would take longer than the powers did. The sum is 1 or more, so it has one;
    what that rounds is little beside what the exponents' differences did.
    """
    value = read(powers, powers.shape)
    inverse = reduce_value(
        ctx, "sum", powers.shape, [dim], value, finish=lambda acc: e.op("reciprocal", acc), hint="inverse"
    )
    return e.mul(value, read(keep(inverse, powers.shape, [dim]), powers.shape))


def _nothing(ctx: Context, x: Array) -> Expr:
    """0 of a number, and NaN of what is none."""
    value = value_of(x, compute_dtype(ctx.dtype))
    return e.sub(value, value)


def softmax_over(ctx: Context, x: Array, dim: int, *, safe: bool = False) -> Array:
    """exp(x - max) / sum(exp(x - max)) over `dim`. `safe`: rows of -inf only give 0 instead of NaN."""
    if x.rank == 0:
        nothing = _nothing(ctx, x)
        share = e.add(nothing, e.like(1, nothing))
        if safe:
            value = value_of(x, compute_dtype(ctx.dtype))
            share = e.where(e.test("eq", value, e.like(float("-inf"), value)), e.like(0, value), share)
        return ctx.result(share)
    dim = wrap_dim(dim, x.rank)
    shifted, top = _shifted(ctx, x, dim)
    value = shares(ctx, ctx.map(x.shape, e.op("exp", read(shifted, x.shape)), hint="exp"), dim)
    if safe:
        highest = read(top, x.shape)
        value = e.where(e.test("eq", highest, e.like(float("-inf"), highest)), e.like(0, value), value)
    return ctx.result(value)


@rules.lowers("softmax.int", "special_softmax")
def softmax(ctx: Context, x: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return softmax_over(ctx, x, dim)


@rules.lowers("_softmax")
def half_softmax(ctx: Context, x: Array, dim: int, half_to_float: bool) -> Array:
    return softmax_over(ctx, x, dim)


@rules.lowers("_safe_softmax")
def safe_softmax(ctx: Context, x: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return softmax_over(ctx, x, dim, safe=True)


def log_softmax_over(ctx: Context, x: Array, dim: int) -> Array:
    """(x - max) - log(sum(exp(x - max))) over `dim`."""
    if x.rank == 0:
        return ctx.result(_nothing(ctx, x))
    dim = wrap_dim(dim, x.rank)
    shifted, _ = _shifted(ctx, x, dim)
    value = read(shifted, x.shape)
    total = reduce_value(
        ctx, "sum", x.shape, [dim], e.op("exp", value), finish=lambda acc: e.op("log", acc), hint="logsum"
    )
    return ctx.result(e.sub(value, read(keep(total, x.shape, [dim]), x.shape)))


@rules.lowers("log_softmax.int", "special_log_softmax")
def log_softmax(ctx: Context, x: Array, dim: int, dtype: torch.dtype | None = None) -> Array:
    return log_softmax_over(ctx, x, dim)


@rules.lowers("_log_softmax")
def half_log_softmax(ctx: Context, x: Array, dim: int, half_to_float: bool) -> Array:
    return log_softmax_over(ctx, x, dim)
