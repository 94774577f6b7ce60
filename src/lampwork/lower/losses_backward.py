"""Gradients of losses: of classes, of probabilities, of distances."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from lampwork.graph.symbols import same_sizes
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, at, read
from lampwork.lower.context import Context
from lampwork.lower.losses import MEAN, NONE, floating
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import reshape

rules = Registry()


@rules.lowers("nll_loss_backward", "nll_loss2d_backward")
def nll_loss(
    ctx: Context,
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    """Minus the weight of the class where the class is the target's, 0 elsewhere: computed where it is read, so that a
    softmax behind it stores no gradient but its own."""
    dtype = floating(x)
    shape = (x.shape[0], *x.shape[2:])
    if (
        x.rank < 2
        or target.dtype not in ("i64", "i32")
        or not same_sizes(shape, target.shape)
        or 0 in x.shape
    ):
        raise NotExpressible("a loss of one row, or classes in another type or shape")
    label, factor = _labels(ctx, x, target, weight, ignore_index, dtype)
    given = e.cast(read(grad, () if reduction else shape), dtype)
    if reduction == MEAN:
        given = e.div(given, e.cast(read(total_weight, ()), dtype))
    if factor is not None:
        given = e.mul(given, factor)
    each = ctx.map(shape if reduction == NONE or factor is not None else (), e.op("neg", given), hint="each")
    rows = (shape[0], 1, *shape[1:])
    value = read(reshape(each, rows) if each.rank else each, x.shape)
    chosen = e.test("eq", e.index_value(AXES[1], "i32"), read(reshape(label, rows), x.shape))
    return ctx.result(e.where(chosen, value, e.like(0, value)))


def _labels(
    ctx: Context, x: Array, target: Array, weight: Array | None, ignored: int, dtype: DType
) -> tuple[Array, Expr | None]:
    """The classes, -1 where they count nothing, and their weights. What is no class is an error of eager's."""
    classes = x.shape[1]
    if type(classes) is not int or classes >= 1 << 31:
        raise NotExpressible("as many classes as there are")
    label = e.cast(read(target, target.shape), "i64")
    zero, size = e.const(0, "i64"), e.const(classes, "i64")
    counts = e.test("ne", label, e.const(ignored, "i64"))
    known = e.test("and", e.test("ge", label, zero), e.test("lt", label, size))
    checked = ctx.or_eager(label, e.test("or", known, e.test("not", counts)))
    kept = ctx.map(target.shape, e.cast(e.where(counts, checked, e.const(-1, "i64")), "i32"), hint="label")
    if weight is None:
        return kept, None
    from_label = Index.indirect(e.op("maximum", e.cast(read(kept, kept.shape), "i64"), zero), classes)
    return kept, e.cast(at(weight, [from_label]), dtype)


def _distance(
    ctx: Context, grad: Array, x: Array, target: Array, reduction: int, slope: Callable[[Expr], Expr]
) -> Array:
    """grad * slope(x - target), divided by the number of elements for a mean."""
    dtype = floating(x)
    if not same_sizes(x.shape, target.shape):
        raise NotExpressible("tensors of different sizes")
    given, a, b = (e.cast(read(array, x.shape), dtype) for array in (grad, x, target))
    value = slope(e.sub(a, b))
    if reduction == MEAN:
        value = e.mul(value, e.const(1 / max(prod(x.shape), 1), dtype))
    return ctx.result(e.mul(value, given))


@rules.lowers("mse_loss_backward")
def mse_loss(ctx: Context, grad: Array, x: Array, target: Array, reduction: int) -> Array:
    return _distance(ctx, grad, x, target, reduction, lambda d: e.mul(e.like(2, d), d))


def _clipped(distance: Expr, limit: float, far: float, near: Expr) -> Expr:
    """`near` within the limit, else `far` with the sign of the distance."""
    below = e.test("lt", distance, e.like(-limit, distance))
    above = e.test("gt", distance, e.like(limit, distance))
    return e.where(below, e.like(-far, distance), e.where(above, e.like(far, distance), near))


@rules.lowers("smooth_l1_loss_backward")
def smooth_l1_loss(ctx: Context, grad: Array, x: Array, target: Array, reduction: int, beta: float) -> Array:
    def slope(distance: Expr) -> Expr:
        return _clipped(distance, beta, 1, e.div(distance, e.like(beta, distance)))

    return _distance(ctx, grad, x, target, reduction, slope)


@rules.lowers("huber_loss_backward")
def huber_loss(ctx: Context, grad: Array, x: Array, target: Array, reduction: int, delta: float) -> Array:
    return _distance(ctx, grad, x, target, reduction, lambda d: _clipped(d, delta, delta, d))


@rules.lowers("binary_cross_entropy_backward")
def binary_cross_entropy(
    ctx: Context, grad: Array, x: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    dtype = floating(x)
    arrays = [array for array in (target, weight) if array is not None]
    if any(not same_sizes(array.shape, x.shape) for array in arrays):
        raise NotExpressible("tensors of different sizes")
    given, share, wanted = (e.cast(read(array, x.shape), dtype) for array in (grad, x, target))
    spread = e.op("maximum", e.mul(e.sub(e.const(1, dtype), share), share), e.const(1e-12, dtype))
    value = e.div(e.mul(given, e.sub(share, wanted)), spread)
    if weight is not None:
        value = e.mul(value, e.cast(read(weight, x.shape), dtype))
    if reduction == MEAN:
        value = e.div(value, e.const(max(prod(x.shape), 1), dtype))
    return ctx.result(value)
