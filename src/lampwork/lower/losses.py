"""Losses of classification: cross entropies of probabilities, logits and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lampwork.graph.symbols import same_sizes
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, LOOP_DTYPES, compute_dtype
from lampwork.lower.reduce import divided, reduce_value
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()

NONE, MEAN, SUM = 0, 1, 2


def _reduced(ctx: Context, shape: tuple[int, ...], value: Expr, reduction: int) -> Array:
    if reduction == NONE:
        return ctx.result(value)
    n = prod(shape)
    finish = (lambda acc: divided(acc, n)) if reduction == MEAN else None
    return reduce_value(ctx, "sum", shape, range(len(shape)), value, finish=finish, dtype=ctx.dtype)


def floating(x: Array) -> DType:
    if x.dtype not in FLOATS:
        raise NotExpressible("a loss of integers")
    return compute_dtype(x.dtype)


@rules.lowers("binary_cross_entropy")
def binary_cross_entropy(
    ctx: Context, x: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    """Of probabilities: what is none is an error of eager's."""
    dtype = floating(x)
    given = [array for array in (target, weight) if array is not None]
    if any(not same_sizes(array.shape, x.shape) for array in given):
        raise NotExpressible("tensors of different sizes")
    share, wanted = (e.cast(read(array, x.shape), dtype) for array in (x, target))
    zero, one, least = (e.const(number, dtype) for number in (0, 1, -100))
    share = e.require(share, e.test("and", e.test("ge", share, zero), e.test("le", share, one)))
    yes = e.op("maximum", e.op("log", share), least)
    no = e.op("maximum", e.op("log1p", e.op("neg", share)), least)
    value = e.sub(e.mul(e.sub(wanted, one), no), e.mul(wanted, yes))
    if weight is not None:
        value = e.mul(value, e.cast(read(weight, x.shape), dtype))
    return _reduced(ctx, x.shape, value, reduction)


@rules.lowers("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    ctx: Context,
    x: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    dtype = floating(x)
    if not same_sizes(target.shape, x.shape) or target.dtype not in FLOATS:
        raise NotExpressible("a target of another size or type")
    for array in (weight, pos_weight):
        if array is not None and array.rank > x.rank:
            raise NotExpressible("weights that widen the result")
    logit, wanted = (e.cast(read(array, x.shape), dtype) for array in (x, target))
    one = e.const(1, dtype)
    soft = e.op("softplus", e.op("neg", e.op("abs", logit)))
    yes = e.sub(e.op("minimum", logit, e.const(0, dtype)), soft)
    if pos_weight is not None:
        positive = e.cast(read(pos_weight, x.shape), dtype)
        yes = e.mul(yes, e.add(e.mul(e.sub(positive, one), wanted), one))
    value = e.sub(e.mul(e.sub(one, wanted), logit), yes)
    if weight is not None:
        value = e.mul(value, e.cast(read(weight, x.shape), dtype))
    return _reduced(ctx, x.shape, value, reduction)


@rules.lowers("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    ctx: Context, x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """(the loss, the sum of the weights) of log-probabilities [batch, classes, …] and classes [batch, …]. A class that
    is none is an error of eager's, unless it is `ignore_index`, which counts nothing."""
    dtype = floating(x)
    if x.rank < 2 or target.dtype not in ("i64", "i32"):
        raise NotExpressible("a loss of one row, or classes in another type")
    shape = (x.shape[0], *x.shape[2:])
    if not same_sizes(shape, target.shape) or 0 in x.shape:
        raise NotExpressible("classes in another shape, or none")
    out = LOOP_DTYPES[ctx.first.dtype]
    chosen, factor = _chosen(x, target, weight, ignore_index, dtype)
    if reduction == NONE:
        loss = ctx.map(shape, e.cast(chosen, out), ctx.first.strides)
        return loss, ctx.map((), e.const(0, out), hint="weight")
    dims = range(len(shape))
    if reduction == SUM:
        loss = reduce_value(ctx, "sum", shape, dims, chosen, dtype=out)
        if 1 not in ctx.wanted:
            return loss, ctx.nothing()
        return loss, reduce_value(ctx, "sum", shape, dims, factor, dtype=out, hint="weight")
    total = reduce_value(ctx, "sum", shape, dims, factor, hint="weight")
    summed = reduce_value(ctx, "sum", shape, dims, chosen, hint="sum")
    loss = ctx.map((), e.cast(e.div(read(summed, ()), read(total, ())), out))
    if 1 not in ctx.wanted or total.dtype == out:
        return loss, total
    return loss, ctx.map((), e.cast(read(total, ()), out), hint="rounded")


def _chosen(x: Array, target: Array, weight: Array | None, ignored: int, dtype: DType) -> tuple[Expr, Expr]:
    """(minus the weighted log-probability of the class, its weight) at (i0, i1, …) of the target."""
    label = e.cast(read(target, target.shape), "i64")
    counts = e.test("ne", label, e.const(ignored, "i64"))
    place = Index.indirect(e.where(counts, label, e.const(0, "i64")), x.shape[1])
    point: Sequence[Index] = [AXES[0], place, *AXES[1 : target.rank]]
    factor = e.const(1, dtype) if weight is None else e.cast(at(weight, [place]), dtype)
    factor = e.where(counts, factor, e.const(0, dtype))
    loss = e.op("neg", e.cast(at(x, point), dtype))
    if weight is not None:
        loss = e.mul(loss, factor)
    return e.where(counts, loss, e.const(0, dtype)), factor
