"""Gradients of normalisations, from the statistics that the forward kept: of layers, of groups, of batches.

With h = (x - mean) * rstd and d = grad * weight the gradient of x is rstd * (d - average(d) - h * average(d * h)); that
of the weight is the sum of grad * h, that of the bias the sum of grad.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Expr, Map
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, axes_of, read
from lampwork.lower.context import Context, count, keep
from lampwork.lower.dtypes import LOOP_DTYPES, compute_dtype
from lampwork.lower.norm import per_channel
from lampwork.lower.reduce import reduce_value, value_of
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import reshape

rules = Registry()


def _given(results: Sequence[Array | None], ctx: Context) -> tuple[Array, ...]:
    return tuple(ctx.nothing() if result is None else result for result in results)


def _result(ctx: Context, number: int) -> DType:
    """The dtype of one of the node's results."""
    spec = ctx.val[number] if isinstance(ctx.val, tuple) else None
    assert spec is not None, "the result is wanted"
    return LOOP_DTYPES[spec.dtype]


def _average(ctx: Context, shape: tuple[int, ...], dims: Sequence[int], value: Expr, hint: str) -> Array:
    n = count(shape, dims)
    total = reduce_value(
        ctx, "sum", shape, dims, value, finish=lambda acc: e.div(acc, e.like(n, acc)), hint=hint
    )
    return keep(total, shape, dims)


def _sum_as(
    ctx: Context, number: int, shape: tuple[int, ...], dims: Sequence[int], value: Expr, hint: str
) -> Array:
    """A sum that is one of the node's results."""
    return reduce_value(ctx, "sum", shape, dims, value, dtype=_result(ctx, number), hint=hint)


def _of_input(
    ctx: Context, shape: tuple[int, ...], dims: Sequence[int], scaled: Expr, normal: Expr, rstd: Expr
) -> Expr:
    """rstd * (scaled - average(scaled) - normal * average(scaled * normal)) over `dims`."""
    mean = _average(ctx, shape, dims, scaled, "grad_mean")
    slope = _average(ctx, shape, dims, e.product(scaled, normal), "grad_slope")
    centred = e.sub(scaled, read(mean, shape))
    return e.mul(e.fma(e.op("neg", normal), read(slope, shape), centred), rstd)


@rules.lowers("native_layer_norm_backward")
def layer_norm(
    ctx: Context,
    grad: Array,
    x: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array, ...]:
    if x.numel == 0:
        raise NotExpressible("the gradient of nothing")
    lead = x.rank - len(normalized_shape)
    rows, dims = list(range(lead)), list(range(lead, x.rank))
    dtype = compute_dtype(x.dtype)
    given, scale = value_of(grad, dtype), e.cast(read(rstd, x.shape), dtype)
    normal = e.mul(e.sub(value_of(x, dtype), e.cast(read(mean, x.shape), dtype)), scale)
    results: list[Array | None] = [None, None, None]
    if 0 in ctx.wanted:
        scaled = given if weight is None else e.mul(given, e.cast(read(weight, x.shape), dtype))
        value = _of_input(ctx, x.shape, dims, scaled, normal, scale)
        results[0] = ctx.map(x.shape, e.cast(value, _result(ctx, 0)), hint="x")
    if 1 in ctx.wanted:
        results[1] = _sum_as(ctx, 1, x.shape, rows, e.product(given, normal), "weight")
    if 2 in ctx.wanted:
        results[2] = _sum_as(ctx, 2, x.shape, rows, given, "bias")
    return _given(results, ctx)


@rules.lowers("native_group_norm_backward")
def group_norm(
    ctx: Context,
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Array, ...]:
    """The loops run over (batch, group, channel of the group, …), as those of the forward do."""
    if x.rank < 2 or (N, C, HxW) != (*x.shape[:2], prod(x.shape[2:])) or C % group or x.numel == 0:
        raise NotExpressible(f"a group norm of {list(x.shape)} as {(N, C, HxW)} in {group} groups")
    per, dtype = C // group, compute_dtype(x.dtype)
    shape = (N, group, per, *x.shape[2:])
    dims, channel = list(range(2, len(shape))), AXES[1] * per + AXES[2]
    given, taken = (value_of(reshape(array, shape), dtype) for array in (grad, x))
    centre, scale = (
        e.cast(read(reshape(array, (N, group, *[1] * len(dims))), shape), dtype) for array in (mean, rstd)
    )
    centred = e.sub(taken, centre)
    normal = e.mul(centred, scale)
    factor = None if weight is None else e.cast(at(weight, [channel]), dtype)
    results: list[Array | None] = [None, None, None]
    sums = None
    if x.rank > 2 and ctx.wanted & {1, 2}:
        sums = _sums_of_channels(ctx, shape, given, e.product(given, centred))
    if 0 in ctx.wanted:
        scaled = given if factor is None else e.mul(given, factor)
        if sums is None:
            value = _of_input(ctx, shape, dims, scaled, normal, scale)
        else:
            mean_grad, slope = (_of_groups(ctx, each, factor, prod(shape[2:]), len(shape)) for each in sums)
            root = e.mul(scale, scale)
            value = e.sub(scaled, read(mean_grad, shape))
            value = e.mul(e.fma(e.op("neg", centred), e.mul(read(slope, shape), root), value), scale)
        out = ctx.buffer(x.shape, _result(ctx, 0), ctx.first.strides, "x")
        place: list[Index] = [AXES[0], channel, *AXES[3 : len(shape)]]
        ctx.emit(Map(out.buffer, axes_of(shape), tuple(place), e.cast(value, out.dtype)))
        results[0] = out
    if sums is not None:
        few, (total, dot) = shape[:3], sums
        root = e.cast(read(reshape(rstd, (N, group, 1)), few), dtype)
        wanted = {1: (e.product(read(dot, few), root), "weight"), 2: (read(total, few), "bias")}
        for number in ctx.wanted & {1, 2}:
            results[number] = reshape(_sum_as(ctx, number, few, [0], *wanted[number]), (C,))
        return _given(results, ctx)
    over = [0, *range(3, len(shape))]
    if 1 in ctx.wanted:
        results[1] = reshape(_sum_as(ctx, 1, shape, over, e.product(given, normal), "weight"), (C,))
    if 2 in ctx.wanted:
        results[2] = reshape(_sum_as(ctx, 2, shape, over, given, "bias"), (C,))
    return _given(results, ctx)


def _sums_of_channels(ctx: Context, shape: tuple[int, ...], given: Expr, dot: Expr) -> tuple[Array, Array]:
    """Two sums over the places of each channel, (batch, group, channel of the group): all three gradients are made of
    them, so that the elements are added up once."""
    places = range(3, len(shape))
    total = reduce_value(ctx, "sum", shape, places, given, hint="sum")
    return total, reduce_value(ctx, "sum", shape, places, dot, hint="dot")


def _of_groups(ctx: Context, sums: Array, factor: Expr | None, n: int, rank: int) -> Array:
    """The average over the `n` elements of each group of what its channels have, times their weights: (batch, group,
    1, …)."""
    value: Expr = read(sums, sums.shape)
    if factor is not None:
        value = e.mul(value, factor)
    average = reduce_value(
        ctx, "sum", sums.shape, [2], value, finish=lambda acc: e.div(acc, e.like(n, acc)), hint="average"
    )
    return reshape(average, (*sums.shape[:2], *[1] * (rank - 2)))


@rules.lowers("native_batch_norm_backward", "batch_norm_backward")
def batch_norm(
    ctx: Context,
    grad: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    *reserve: Array,
) -> tuple[Array, ...]:
    """Without training the statistics are given, and no gradient goes through them."""
    mean, spread = (save_mean, save_invstd) if train else (running_mean, running_var)
    if mean is None or spread is None or x.numel == 0:
        raise NotExpressible("the gradient of nothing, or without statistics")
    dims = [dim for dim in range(x.rank) if dim != 1]
    dtype, channels = compute_dtype(x.dtype), (x.shape[1],)

    def of_channel(array: Array) -> Expr:
        return e.cast(read(per_channel(array, x.rank), x.shape), dtype)

    if not train:
        inner = e.add(e.cast(read(spread, channels), dtype), e.const(eps, dtype))
        spread = ctx.map(channels, e.div(e.const(1, dtype), e.op("sqrt", inner)), hint="invstd")
    given, centre, scale = value_of(grad, dtype), of_channel(mean), of_channel(spread)
    factor = scale if weight is None else e.mul(scale, of_channel(weight))
    centred = e.sub(value_of(x, dtype), centre)
    results: list[Array | None] = [None, None, None]
    needed = train and 0 in ctx.wanted
    total = reduce_value(ctx, "sum", x.shape, dims, given, hint="sum") if needed or 2 in ctx.wanted else None
    dot = None
    if needed or 1 in ctx.wanted:
        dot = reduce_value(ctx, "sum", x.shape, dims, e.product(given, centred), hint="dot")
    if 0 in ctx.wanted:
        value = given
        if total is not None and dot is not None and train:
            n = e.const(count(x.shape, dims), dtype)
            root = e.cast(read(spread, channels), dtype)
            slope_value = e.div(e.mul(e.mul(read(dot, channels), root), root), n)
            slope = ctx.map(channels, slope_value, hint="slope")
            average = ctx.map(channels, e.div(read(total, channels), n), hint="average")
            value = e.fma(e.op("neg", centred), of_channel(slope), e.sub(given, of_channel(average)))
        value = e.mul(value, factor)
        results[0] = ctx.map(x.shape, e.cast(value, _result(ctx, 0)), ctx.first.strides, "x")
    if 1 in ctx.wanted and dot is not None:
        value = e.mul(read(dot, channels), e.cast(read(spread, channels), dtype))
        results[1] = ctx.map(channels, e.cast(value, _result(ctx, 1)), hint="weight")
    if 2 in ctx.wanted and total is not None:
        results[2] = ctx.map(channels, e.cast(read(total, channels), _result(ctx, 2)), hint="bias")
    return _given(results, ctx)
