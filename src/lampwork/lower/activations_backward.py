"""Gradients of activation functions and of dropout, by eager's formulas or such as need fewer exponentials."""

from __future__ import annotations

from collections.abc import Callable

from lampwork.graph.shapes_common import wrap_dim
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Expr, Map
from lampwork.lower import exprs as e
from lampwork.lower.arrays import AXES, Array, axes_of, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import FLOATS, LOOP_DTYPES, compute_dtype
from lampwork.lower.pointwise import Number, compute, operand
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import reshape, slice_dim
from lampwork.standard import math

rules = Registry()


def _gradient(ctx: Context, grad: Array, x: Array, function: Callable[[Expr, Expr], Expr]) -> Array:
    """function(grad, x), element by element."""
    if ctx.dtype not in FLOATS:
        raise NotExpressible("a gradient of integers")
    dtype = compute(ctx)
    return ctx.result(function(operand(ctx, grad, dtype), operand(ctx, x, dtype)))


def _sigmoid(value: Expr) -> Expr:
    one = e.like(1, value)
    return e.div(one, e.add(one, e.op("exp", e.op("neg", value))))


def _kept_where(condition: Expr, grad: Expr) -> Expr:
    return e.where(condition, grad, e.like(0, grad))


def _strictly_between(value: Expr, low: Number, high: Number) -> Expr:
    return e.test("and", e.test("gt", value, e.like(low, value)), e.test("lt", value, e.like(high, value)))


@rules.lowers("threshold_backward")
def threshold(ctx: Context, grad: Array, x: Array, threshold: Number) -> Array:
    return _gradient(
        ctx, grad, x, lambda g, v: e.where(e.test("le", v, e.like(threshold, v)), e.like(0, g), g)
    )


@rules.lowers("sigmoid_backward")
def sigmoid(ctx: Context, grad: Array, result: Array) -> Array:
    return _gradient(ctx, grad, result, lambda g, y: e.mul(e.mul(g, e.sub(e.like(1, y), y)), y))


@rules.lowers("tanh_backward")
def tanh(ctx: Context, grad: Array, result: Array) -> Array:
    return _gradient(ctx, grad, result, lambda g, y: e.mul(g, e.fma(e.op("neg", y), y, e.like(1, y))))


@rules.lowers("gelu_backward")
def gelu(ctx: Context, grad: Array, x: Array, *, approximate: str = "none") -> Array:
    def exact(g: Expr, v: Expr) -> Expr:
        density = e.op("exp", e.mul(e.mul(v, v), e.like(-0.5, v)))
        slope = e.mul(v, e.like(1 / math.sqrt(2 * math.pi), v))
        return e.mul(g, e.fma(slope, density, e.op("ndtr", v)))

    def by_tanh(g: Expr, v: Expr) -> Expr:
        # With s = (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)) the derivative is s + x 2 u' s (1 - s).
        scale = 2 * math.sqrt(2 / math.pi)
        one, square = e.like(1, v), e.mul(v, v)
        slope = e.fma(e.like(0.044715 * scale, v), square, e.like(scale, v))
        share = _sigmoid(e.mul(v, slope))
        inner = e.fma(e.like(3 * 0.044715 * scale, v), square, e.like(scale, v))
        rest = e.mul(share, e.sub(one, share))
        return e.mul(g, e.fma(e.mul(v, inner), rest, share))

    return _gradient(ctx, grad, x, by_tanh if approximate == "tanh" else exact)


@rules.lowers("silu_backward")
def silu(ctx: Context, grad: Array, x: Array) -> Array:
    def function(g: Expr, v: Expr) -> Expr:
        one, share = e.like(1, v), _sigmoid(v)
        return e.mul(e.mul(g, share), e.fma(v, e.sub(one, share), one))

    return _gradient(ctx, grad, x, function)


@rules.lowers("mish_backward")
def mish(ctx: Context, grad: Array, x: Array) -> Array:
    """With p = e^x and n = p (p + 2) the tanh of softplus is t = n / (n + 2), and 1 - t = 2 / (n + 2)."""

    def function(g: Expr, v: Expr) -> Expr:
        one, two, limit = (e.like(number, v) for number in (1, 2, 20))
        beyond = e.test("gt", v, limit)
        power = e.op("exp", e.where(beyond, limit, v))
        n = e.mul(power, e.add(power, two))
        below = e.where(beyond, e.like(0, v), e.div(two, e.add(n, two)))
        share = e.div(power, e.add(one, power))
        value = e.div(n, e.add(n, two))
        slope = e.mul(below, e.add(one, value))
        return e.mul(g, e.fma(e.mul(v, share), slope, value))

    return _gradient(ctx, grad, x, function)


@rules.lowers("hardtanh_backward")
def hardtanh(ctx: Context, grad: Array, x: Array, min_val: Number, max_val: Number) -> Array:
    return _gradient(ctx, grad, x, lambda g, v: _kept_where(_strictly_between(v, min_val, max_val), g))


# What eager multiplies by, in float64 too.
_SIXTH = 0.1666666716337204


@rules.lowers("hardsigmoid_backward")
def hardsigmoid(ctx: Context, grad: Array, x: Array) -> Array:
    def function(g: Expr, v: Expr) -> Expr:
        return _kept_where(_strictly_between(v, -3, 3), e.mul(g, e.like(_SIXTH, g)))

    return _gradient(ctx, grad, x, function)


@rules.lowers("hardswish_backward")
def hardswish(ctx: Context, grad: Array, x: Array) -> Array:
    def function(g: Expr, v: Expr) -> Expr:
        low, high = e.like(-3, v), e.like(3, v)
        middle = e.mul(g, e.add(e.div(v, high), e.like(0.5, v)))
        above = e.where(e.test("ge", v, high), g, middle)
        return e.where(e.test("le", v, low), e.like(0, g), above)

    return _gradient(ctx, grad, x, function)


@rules.lowers("leaky_relu_backward")
def leaky_relu(ctx: Context, grad: Array, x: Array, negative_slope: Number, is_result: bool) -> Array:
    def function(g: Expr, v: Expr) -> Expr:
        return e.where(e.test("gt", v, e.like(0, v)), g, e.mul(g, e.like(negative_slope, g)))

    return _gradient(ctx, grad, x, function)


@rules.lowers("elu_backward")
def elu(
    ctx: Context, grad: Array, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: Array
) -> Array:
    """Of x or, with `is_result`, of elu(x)."""
    factor = alpha * scale

    def function(g: Expr, v: Expr) -> Expr:
        if is_result:
            slope = e.mul(e.like(input_scale, v), e.add(v, e.like(factor, v)))
        else:
            inner = v if input_scale == 1 else e.mul(v, e.like(input_scale, v))
            slope = e.mul(e.like(input_scale * factor, v), e.op("exp", inner))
        positive = g if scale == 1 else e.mul(g, e.like(scale, g))
        return e.where(e.test("gt", v, e.like(0, v)), positive, e.mul(g, slope))

    return _gradient(ctx, grad, x, function)


@rules.lowers("softplus_backward")
def softplus(ctx: Context, grad: Array, x: Array, beta: Number, threshold: Number) -> Array:
    def function(g: Expr, v: Expr) -> Expr:
        inner = v if beta == 1 else e.mul(v, e.like(beta, v))
        return e.where(e.test("gt", inner, e.like(threshold, v)), g, e.mul(g, _sigmoid(inner)))

    return _gradient(ctx, grad, x, function)


@rules.lowers("log_sigmoid_backward")
def log_sigmoid(ctx: Context, grad: Array, x: Array, buffer: Array) -> Array:
    """`buffer` is exp(-|x|)."""

    def function(g: Expr, v: Expr) -> Expr:
        small, one = operand(ctx, buffer, v.dtype), e.like(1, v)
        share = e.div(small, e.add(one, small))
        negative = e.test("lt", v, e.like(0, v))
        return e.mul(e.where(negative, e.sub(one, share), share), g)

    return _gradient(ctx, grad, x, function)


@rules.lowers("hardshrink_backward", "softshrink_backward")
def shrink(ctx: Context, grad: Array, x: Array, lambd: Number) -> Array:
    def function(g: Expr, v: Expr) -> Expr:
        low, high = operand(ctx, -lambd, v.dtype), operand(ctx, lambd, v.dtype)
        return _kept_where(e.test("or", e.test("lt", v, low), e.test("gt", v, high)), g)

    return _gradient(ctx, grad, x, function)


@rules.lowers("logit_backward")
def logit(ctx: Context, grad: Array, x: Array, eps: float | None = None) -> Array:
    def function(g: Expr, v: Expr) -> Expr:
        low, high = (0.0, 1.0) if eps is None else (eps, 1 - eps)
        inside = e.test("and", e.test("ge", v, e.like(low, v)), e.test("le", v, e.like(high, v)))
        slope = e.div(g, e.mul(v, e.sub(e.like(1, v), v)))
        return e.where(inside, slope, e.like(math.nan if eps is None else 0, g))

    return _gradient(ctx, grad, x, function)


@rules.lowers("glu_backward")
def glu(ctx: Context, grad: Array, x: Array, dim: int) -> Array:
    """The halves of the result, in a dimension of their own: grad * sigmoid(b) and grad * a * sigmoid(b)'."""
    dim = wrap_dim(dim, x.rank)
    half, dtype = x.shape[dim] // 2, compute(ctx)
    shape = (*x.shape[:dim], 2, half, *x.shape[dim + 1 :])
    single = (*x.shape[:dim], 1, half, *x.shape[dim + 1 :])

    def along(array: Array) -> Expr:
        return e.cast(read(reshape(array, single), shape), dtype)

    value, gate = (along(slice_dim(x, dim, start, half)) for start in (0, half))
    given, share = along(grad), e.op("sigmoid", gate)
    first = e.mul(share, given)
    second = e.mul(e.mul(e.mul(e.sub(e.like(1, share), share), share), value), given)
    is_first = e.test("eq", e.index_value(AXES[dim]), e.const(0, "i64"))
    spec = ctx.spec
    out = ctx.buffer(x.shape, ctx.dtype, spec.strides)
    place: list[Index] = [*AXES[:dim], AXES[dim] * half + AXES[dim + 1], *AXES[dim + 2 : len(shape)]]
    ctx.emit(
        Map(out.buffer, axes_of(shape), tuple(place), e.cast(e.where(is_first, first, second), out.dtype))
    )
    return out


@rules.lowers("_prelu_kernel_backward")
def prelu(ctx: Context, grad: Array, x: Array, weight: Array) -> tuple[Array, ...]:
    """(the gradient of x, for each element that of its weight)."""
    dtype, own = compute_dtype(x.dtype), LOOP_DTYPES[ctx.first.dtype]
    g, v, w = (e.cast(read(array, x.shape), dtype) for array in (grad, x, weight))
    positive = e.test("gt", v, e.like(0, v))
    values = (e.where(positive, g, e.mul(w, g)), e.where(positive, e.like(0, g), e.mul(v, g)))
    return tuple(
        ctx.map(x.shape, e.cast(value, own), ctx.first.strides, hint) if n in ctx.wanted else ctx.nothing()
        for n, (value, hint) in enumerate(zip(values, ("x", "weight"), strict=True))
    )


@rules.lowers("native_dropout_backward")
def native_dropout(ctx: Context, grad: Array, mask: Array, scale: float) -> Array:
    if ctx.dtype not in FLOATS:
        raise NotExpressible("a gradient of integers")
    dtype = compute(ctx)
    kept = e.mul(e.cast(read(mask, ctx.spec.shape), dtype), e.const(scale, dtype))
    return ctx.result(e.mul(operand(ctx, grad, dtype), kept))
