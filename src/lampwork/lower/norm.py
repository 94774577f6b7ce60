"""Normalisations: layer, group, batch (with given or its own statistics) and root-mean-square.

Statistics are taken in two passes over the row (mean, then squared distances), in f32 for half types, so that they are
as exact as eager's running ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from lampwork.graph.symbols import same_size
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Expr, Map
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, axes_of, read
from lampwork.lower.context import Context, count, keep
from lampwork.lower.dtypes import LOOP_DTYPES, TORCH_DTYPES, compute_dtype
from lampwork.lower.reduce import (
    mean_value,
    reduce_value,
    select_kept,
    squared_distance,
    value_of,
    variance,
)
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import reshape, slice_dim
from lampwork.standard import math

rules = Registry()


def _reciprocal_root(value: Expr, eps: float) -> Expr:
    """1 / sqrt(value + eps)."""
    return e.div(e.like(1, value), e.op("sqrt", e.add(value, e.like(eps, value))))


# Squares of such numbers add up in single precision, however many there are and in whatever order.
_LARGEST = 2.0**45


def _moderate(ctx: Context, statistic: Expr, largest: float) -> Expr:
    """A mean or variance, required to be at most `largest`, or NaN, which it is in eager too.

    Beyond that eager's running statistics overflow to NaN or to infinities as its order of summation has it, or do not
    overflow at all where they are kept in double precision: it is eager then that makes the result.
    """
    size = e.op("abs", statistic)
    return ctx.or_eager(statistic, e.test("not", e.test("gt", size, e.like(largest, size))))


def _statistics(ctx: Context, x: Array, dims: Sequence[int], dtype: DType, eps: float) -> tuple[Array, Array]:
    """(mean, 1 / sqrt(var + eps)) over `dims`, with those of size 1."""
    if count(x.shape, dims) == 0:
        raise NotExpressible("the statistics of no elements")
    mean = mean_value(ctx, x, dims, dtype, finish=lambda m: _moderate(ctx, m, _LARGEST))

    def finish(var: Expr) -> Expr:
        return _reciprocal_root(_moderate(ctx, var, _LARGEST**2), eps)

    scale = variance(ctx, x, mean, dims, finish=finish, hint="rstd")
    return mean, keep(scale, x.shape, dims)


def _affine(value: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    if weight is not None and bias is not None:
        return e.fma(value, e.cast(weight, value.dtype), e.cast(bias, value.dtype))
    if weight is not None:
        value = e.mul(value, e.cast(weight, value.dtype))
    if bias is not None:
        value = e.add(value, e.cast(bias, value.dtype))
    return value


def _linear(value: Expr, mean: Expr, rstd: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    """value * scale + shift, with scale = rstd * weight and shift = bias - mean * scale for each channel.

    So does eager, and an infinite weight makes NaN of it. Loops compute scale and shift once per channel.
    """
    scale = rstd if weight is None else e.mul(rstd, e.cast(weight, rstd.dtype))
    centre = e.op("neg", mean)
    shift = e.mul(centre, scale) if bias is None else e.fma(centre, scale, e.cast(bias, scale.dtype))
    return e.fma(value, scale, shift)


def _store(ctx: Context, shape: tuple[int, ...], value: Expr) -> Array:
    """`value` as the node's first result."""
    spec = ctx.first
    return ctx.map(shape, e.cast(value, LOOP_DTYPES[spec.dtype]), spec.strides)


def _kept(ctx: Context, *results: Array) -> tuple[Array, ...]:
    """The node's results, with those that are read in the dtypes that eager gives them (statistics of half types too
    are kept in half)."""
    specs = ctx.val if isinstance(ctx.val, tuple) else ()
    kept: list[Array] = [results[0]]
    for n, (array, spec) in enumerate(zip(results, specs, strict=True)):
        if n and spec is not None and n in ctx.wanted and LOOP_DTYPES[spec.dtype] != array.dtype:
            array = ctx.map(
                array.shape, e.cast(read(array, array.shape), LOOP_DTYPES[spec.dtype]), hint="kept"
            )
        if n:
            kept.append(array)
    return tuple(kept)


# --- layer norm -------------------------------------------------------------------------------------------------------


def _layer_norm(
    ctx: Context,
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> tuple[Array, Array, Array]:
    """(result, mean, rstd); the statistics have size 1 in the normalized dimensions."""
    dims = list(range(x.rank - len(normalized_shape), x.rank))
    dtype = compute_dtype(x.dtype)
    mean, rstd = _statistics(ctx, x, dims, dtype, eps)
    centred = e.sub(value_of(x, dtype), read(mean, x.shape))
    value = _affine(
        e.mul(centred, read(rstd, x.shape)),
        None if weight is None else read(weight, x.shape),
        None if bias is None else read(bias, x.shape),
    )
    return _store(ctx, x.shape, value), mean, rstd


@rules.lowers("layer_norm")
def layer_norm(
    ctx: Context,
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Array:
    return _layer_norm(ctx, x, normalized_shape, weight, bias, eps)[0]


@rules.lowers("native_layer_norm")
def native_layer_norm(
    ctx: Context,
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> tuple[Array, ...]:
    return _kept(ctx, *_layer_norm(ctx, x, normalized_shape, weight, bias, eps))


# --- root mean square -------------------------------------------------------------------------------------------------


def _rms_norm(
    ctx: Context, x: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    dims = list(range(x.rank - len(normalized_shape), x.rank))
    if count(x.shape, dims) == 0:
        raise NotExpressible("the statistics of no elements")
    dtype = compute_dtype(x.dtype)
    value = value_of(x, dtype)
    size = count(x.shape, dims)
    small = torch.finfo(TORCH_DTYPES[dtype]).eps if eps is None else eps
    scale = reduce_value(
        ctx,
        "sum",
        x.shape,
        dims,
        e.product(value, value),
        finish=lambda acc: _reciprocal_root(e.div(acc, e.like(size, acc)), small),
        hint="rstd",
    )
    rstd = keep(scale, x.shape, dims)
    scaled = e.mul(value, read(rstd, x.shape))
    value = _affine(scaled, None if weight is None else read(weight, x.shape), None)
    return _store(ctx, x.shape, value), rstd


@rules.lowers("rms_norm")
def rms_norm(
    ctx: Context,
    x: Array,
    normalized_shape: Sequence[int],
    weight: Array | None = None,
    eps: float | None = None,
) -> Array:
    return _rms_norm(ctx, x, normalized_shape, weight, eps)[0]


@rules.lowers("_fused_rms_norm")
def fused_rms_norm(
    ctx: Context, x: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, ...]:
    return _kept(ctx, *_rms_norm(ctx, x, normalized_shape, weight, eps))


# --- group norm -------------------------------------------------------------------------------------------------------


def _group_norm(
    ctx: Context, x: Array, groups: int, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """(result, mean, rstd); the statistics are (batch, groups).

    The loops run over (batch, group, channel of the group, …); the result is stored at channel group*per + channel.
    """
    if x.rank > 2 and x.strides is not None and same_size(x.strides[1], 1) and x.shape[1] >= _SIDE_BY_SIDE:
        return _group_norm_by_channel(ctx, x, groups, weight, bias, eps)
    batch, channels = x.shape[:2]
    per = channels // groups
    grouped = reshape(x, (batch, groups, per, *x.shape[2:]))
    dims = list(range(2, grouped.rank))
    dtype = compute_dtype(x.dtype)
    mean, rstd = _statistics(ctx, grouped, dims, dtype, eps)
    channel = AXES[1] * per + AXES[2]
    x_value, centre, scale = value_of(grouped, dtype), read(mean, grouped.shape), read(rstd, grouped.shape)
    if weight is None and bias is None:
        value = e.mul(e.sub(x_value, centre), scale)
    else:
        factor = None if weight is None else at(weight, [channel])
        value = _linear(x_value, centre, scale, factor, None if bias is None else at(bias, [channel]))
    out = ctx.buffer(x.shape, LOOP_DTYPES[ctx.first.dtype], ctx.first.strides)
    place: list[Index] = [AXES[0], channel, *AXES[3 : grouped.rank]]
    ctx.emit(Map(out.buffer, axes_of(grouped.shape), tuple(place), e.cast(value, out.dtype)))
    return out, reshape(mean, (batch, groups)), reshape(rstd, (batch, groups))


# So many channels that lie side by side fill a vector.
_SIDE_BY_SIDE = 8


def _group_norm_by_channel(
    ctx: Context, x: Array, groups: int, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """For channels that lie side by side: sums for each channel, of which those of a group are added, then for each
    channel of the group alike, so that no loop over all elements divides channels by groups."""
    batch, channels = x.shape[:2]
    per = channels // groups
    dims = range(2, x.rank)
    dtype = compute_dtype(x.dtype)
    n = per * count(x.shape, dims)
    if same_size(n, 0):
        raise NotExpressible("the statistics of no elements")
    expanded = (batch, channels, *([1] * (x.rank - 2)))

    def of_group(value: Expr, hint: str, finish: Callable[[Expr], Expr]) -> Array:
        sums = reduce_value(ctx, "sum", x.shape, dims, value, hint=f"{hint}_sums")
        member = at(sums, [AXES[0], AXES[1] // per * per + AXES[2]])
        shape = (batch, channels, per)
        return reduce_value(
            ctx, "sum", shape, [2], member, finish=lambda acc: finish(e.div(acc, e.like(n, acc))), hint=hint
        )

    mean = of_group(value_of(x, dtype), "mean", lambda m: _moderate(ctx, m, _LARGEST))
    centre = reshape(mean, expanded)
    rstd = of_group(
        squared_distance(x, centre),
        "rstd",
        lambda var: _reciprocal_root(_moderate(ctx, var, _LARGEST**2), eps),
    )
    value = _linear(
        value_of(x, dtype),
        read(centre, x.shape),
        read(reshape(rstd, expanded), x.shape),
        None if weight is None else read(per_channel(weight, x.rank), x.shape),
        None if bias is None else read(per_channel(bias, x.rank), x.shape),
    )
    result = _store(ctx, x.shape, value)
    return result, slice_dim(mean, 1, 0, groups, per), slice_dim(rstd, 1, 0, groups, per)


@rules.lowers("group_norm")
def group_norm(
    ctx: Context,
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Array:
    return _group_norm(ctx, x, num_groups, weight, bias, eps)[0]


@rules.lowers("native_group_norm")
def native_group_norm(
    ctx: Context,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Array, ...]:
    if x.rank < 2 or (N, C, HxW) != (*x.shape[:2], prod(x.shape[2:])) or C % group:
        raise NotExpressible(f"a group norm of {list(x.shape)} as {(N, C, HxW)} in {group} groups")
    return _kept(ctx, *_group_norm(ctx, x, group, weight, bias, eps))


# --- batch norm -------------------------------------------------------------------------------------------------------


def per_channel(values: Array, rank: int) -> Array:
    """Values of each channel as (channels, 1, 1, …), which broadcasts over a tensor of `rank` dimensions."""
    return reshape(values, (values.shape[0], *([1] * (rank - 2))))


def _normalise(
    ctx: Context, x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, eps: float
) -> Array:
    """x * scale + shift, with scale = weight / sqrt(var + eps) and shift = bias - mean * scale for each channel.

    Of bound tensors both are computed once, in the constant part.
    """
    dtype = compute_dtype(x.dtype)
    shape = (x.shape[1],)
    scale_value = _reciprocal_root(e.cast(read(var, shape), dtype), eps)
    if weight is not None:
        scale_value = e.mul(scale_value, e.cast(read(weight, shape), dtype))
    given = [array for array in (weight, mean, var, bias) if array is not None]
    scale = ctx.map(shape, scale_value, hint="scale", reads=given)
    centre = e.op("neg", e.cast(read(mean, shape), dtype))
    if bias is not None:
        shift_value = e.fma(centre, read(scale, shape), e.cast(read(bias, shape), dtype))
    else:
        shift_value = e.mul(centre, read(scale, shape))
    shift = ctx.map(shape, shift_value, hint="shift", reads=[*given, scale])
    factor, shifted = (read(per_channel(each, x.rank), x.shape) for each in (scale, shift))
    taken = value_of(x, dtype)
    if dtype != x.dtype:
        # Behind a convolution one rounding less than eager's, as if the norm were folded into its weights.
        taken = e.op("unrounded", taken)
    return _store(ctx, x.shape, e.fma(taken, factor, shifted))


def _of_channels(
    x: Array, dtype: DType, mean: Expr, rstd: Expr, weight: Array | None, bias: Array | None
) -> Expr:
    """(x - mean) * rstd * weight + bias, with a weight and a bias for each channel."""
    factors = (None if each is None else read(per_channel(each, x.rank), x.shape) for each in (weight, bias))
    return _linear(value_of(x, dtype), mean, rstd, *factors)


@rules.lowers("batch_norm")
def batch_norm(
    ctx: Context,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Array:
    """With given statistics, or with the batch's own where none are kept. Updating statistics is left to ATen."""
    if x.rank < 2:
        raise NotExpressible("batch_norm of a tensor without channels")
    if running_mean is not None and running_var is not None:
        if training:
            raise NotExpressible("batch_norm that updates its statistics")
        return _normalise(ctx, x, weight, bias, running_mean, running_var, eps)
    dims = [dim for dim in range(x.rank) if dim != 1]
    if count(x.shape, dims) == 0:
        raise NotExpressible("the statistics of no elements")
    dtype = compute_dtype(x.dtype)
    mean, rstd = _statistics(ctx, x, dims, dtype, eps)
    value = _of_channels(x, dtype, read(mean, x.shape), read(rstd, x.shape), weight, bias)
    return _store(ctx, x.shape, value)


@rules.lowers("native_batch_norm", "_native_batch_norm_legit_functional")
def native_batch_norm(
    ctx: Context,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """(result, mean, 1 / std) of the batch; the functional form then gives the new running statistics."""
    updates = isinstance(ctx.val, tuple) and len(ctx.val) == _WITH_STATISTICS
    if not training or x.rank < 2 or x.numel == 0 or (running_mean is not None and not updates):
        raise NotExpressible("given statistics, or such as are written behind the graph's back")
    dims = [dim for dim in range(x.rank) if dim != 1]
    dtype, n, channels = compute_dtype(x.dtype), count(x.shape, dims), (x.shape[1],)
    mean = mean_value(ctx, x, dims, dtype, finish=lambda m: _moderate(ctx, m, _LARGEST))
    var = variance(ctx, x, mean, dims, finish=lambda v: _moderate(ctx, v, _LARGEST**2))
    rstd = ctx.map(channels, _reciprocal_root(read(var, channels), eps), hint="rstd")
    centre = select_kept(mean, [1])
    of_channels = read(per_channel(rstd, x.rank), x.shape)
    value = _of_channels(x, dtype, read(mean, x.shape), of_channels, weight, bias)
    results = [_store(ctx, x.shape, value), centre, rstd]
    if updates and running_mean is not None and running_var is not None:
        unbiased = e.mul(read(var, channels), e.const(n / (n - 1) if n > 1 else math.nan, dtype))
        for kept, new in ((running_mean, read(centre, channels)), (running_var, unbiased)):
            share, rest = e.const(momentum, dtype), e.const(1 - momentum, dtype)
            old = e.cast(read(kept, channels), dtype)
            results.append(ctx.map(channels, e.add(e.mul(share, new), e.mul(rest, old)), hint="running"))
    return _kept(ctx, *results)


_WITH_STATISTICS = 5
"""The results of a batch norm that gives its running statistics anew."""


@rules.lowers("_native_batch_norm_legit.no_stats")
def batch_norm_without_state(
    ctx: Context,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    return native_batch_norm(ctx, x, weight, bias, None, None, training, momentum, eps)


@rules.lowers("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    ctx: Context,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    result = _normalise(ctx, x, weight, bias, running_mean, running_var, eps)
    if ctx.wanted <= {0}:
        return result, ctx.nothing(), ctx.nothing()
    empty = ctx.map((0,), e.const(0, compute_dtype(x.dtype)), hint="empty")
    return result, empty, empty
