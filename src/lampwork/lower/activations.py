"""Activation functions, each by the formula that eager uses or one that is as exact and needs fewer exponentials."""

from __future__ import annotations

from lampwork.graph.shapes_common import wrap_dim
from lampwork.loops.ir.nodes import Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, read
from lampwork.lower.context import Context
from lampwork.lower.dtypes import compute_dtype
from lampwork.lower.pointwise import Number, compute, elementwise, half_step, operand
from lampwork.lower.registry import NotExpressible, Registry
from lampwork.lower.views import reshape, slice_dim
from lampwork.standard import math

rules = Registry()


@rules.lowers("relu")
def relu(ctx: Context, x: Array) -> Array:
    return elementwise(ctx, x, lambda v: e.op("maximum", v, e.like(0, v)))


@rules.lowers("relu6")
def relu6(ctx: Context, x: Array) -> Array:
    return hardtanh(ctx, x, 0, 6)


@rules.lowers("hardtanh")
def hardtanh(ctx: Context, x: Array, min_val: Number = -1, max_val: Number = 1) -> Array:
    return elementwise(ctx, x, lambda v: _between(v, min_val, max_val))


def _between(value: Expr, low: Number, high: Number) -> Expr:
    return e.op("minimum", e.op("maximum", value, e.like(low, value)), e.like(high, value))


@rules.lowers("gelu")
def gelu(ctx: Context, x: Array, *, approximate: str = "none") -> Array:
    def exact(v: Expr) -> Expr:
        return e.mul(v, e.op("ndtr", v))

    def by_tanh(v: Expr) -> Expr:
        # (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)), which has no difference of nearly equal numbers either.
        scale = -2 * math.sqrt(2 / math.pi)
        slope = e.fma(e.like(0.044715 * scale, v), e.mul(v, v), e.like(scale, v))
        return e.div(v, e.add(e.like(1, v), e.op("exp", e.mul(v, slope))))

    return elementwise(ctx, x, by_tanh if approximate == "tanh" else exact)


@rules.lowers("silu")
def silu(ctx: Context, x: Array) -> Array:
    # Cheaper than by way of the sigmoid, which looks after results that are lost here as they are in eager.
    return elementwise(ctx, x, lambda v: e.div(v, e.add(e.like(1, v), e.op("exp", e.op("neg", v)))))


@rules.lowers("mish")
def mish(ctx: Context, x: Array) -> Array:
    """x tanh(log(1 + e^x)), which is x n / (n + 2) with n = e^x (e^x + 2): one exponential and no logarithm."""

    def function(v: Expr) -> Expr:
        # Beyond 20 the quotient is 1, and NaN stays.
        power = e.op("exp", e.where(e.test("gt", v, e.like(20, v)), e.like(20, v), v))
        n = e.mul(power, e.add(power, e.like(2, v)))
        return e.mul(v, e.div(n, e.add(n, e.like(2, v))))

    return elementwise(ctx, x, function)


@rules.lowers("hardsigmoid")
def hardsigmoid(ctx: Context, x: Array) -> Array:
    return elementwise(ctx, x, lambda v: e.div(_between(e.add(v, e.like(3, v)), 0, 6), e.like(6, v)))


@rules.lowers("hardswish")
def hardswish(ctx: Context, x: Array) -> Array:
    return elementwise(
        ctx, x, lambda v: e.div(e.mul(v, _between(e.add(v, e.like(3, v)), 0, 6)), e.like(6, v))
    )


def _leaky(value: Expr, slope: Expr) -> Expr:
    return e.where(e.test("gt", value, e.like(0, value)), value, e.mul(value, slope))


@rules.lowers("leaky_relu")
def leaky_relu(ctx: Context, x: Array, negative_slope: Number = 0.01) -> Array:
    return elementwise(ctx, x, lambda v: _leaky(v, e.like(negative_slope, v)))


@rules.lowers("prelu", "_prelu_kernel")
def prelu(ctx: Context, x: Array, weight: Array) -> Array:
    """`weight` has one slope, one a channel (dimension 1), or already broadcasts."""
    value = operand(ctx, x, compute(ctx))
    if weight.rank == 1 and weight.shape[0] > 1 and x.rank != 1:
        channels = (1, weight.shape[0], *([1] * (x.rank - 2)))
        slope = operand(ctx, reshape(weight, channels), value.dtype)
    else:
        slope = operand(ctx, weight, value.dtype)
    return ctx.result(_leaky(value, slope))


@rules.lowers("elu")
def elu(ctx: Context, x: Array, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Array:
    def function(v: Expr) -> Expr:
        inner = v if input_scale == 1 else e.mul(v, e.like(input_scale, v))
        negative = e.mul(e.op("expm1", inner), e.like(alpha * scale, v))
        positive = v if scale == 1 else e.mul(v, e.like(scale, v))
        return e.where(e.test("lt", v, e.like(0, v)), negative, positive)

    return elementwise(ctx, x, function)


@rules.lowers("selu")
def selu(ctx: Context, x: Array) -> Array:
    return elu(ctx, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@rules.lowers("celu")
def celu(ctx: Context, x: Array, alpha: Number = 1.0) -> Array:
    if alpha == 0:
        raise NotExpressible("celu with alpha 0 is an error")
    return elu(ctx, x, alpha, 1, 1.0 / alpha)


@rules.lowers("softplus")
def softplus(ctx: Context, x: Array, beta: Number = 1, threshold: Number = 20) -> Array:
    def function(v: Expr) -> Expr:
        inner = v if beta == 1 else e.mul(v, e.like(beta, v))
        # With a high threshold eager's exponential overflows below it.
        soft = e.op("softplus", inner) if threshold <= 80 else e.op("log1p", e.op("exp", inner))
        soft = soft if beta == 1 else e.div(soft, e.like(beta, v))
        return e.where(e.test("gt", inner, e.like(threshold, v)), v, soft)

    return elementwise(ctx, x, function)


def _log_sigmoid(value: Expr) -> Expr:
    small = e.op("softplus", e.op("neg", e.op("abs", value)))
    return e.sub(e.op("minimum", value, e.like(0, value)), small)


@rules.lowers("log_sigmoid")
def log_sigmoid(ctx: Context, x: Array) -> Array:
    return elementwise(ctx, x, _log_sigmoid)


@rules.lowers("log_sigmoid_forward")
def log_sigmoid_forward(ctx: Context, x: Array) -> tuple[Array, Array]:
    """(the result, exp(-|x|) for the backward)."""
    dtype = compute_dtype(x.dtype)
    value = e.cast(read(x, x.shape), dtype)
    strides = ctx.first.strides
    result = ctx.map(x.shape, e.cast(_log_sigmoid(value), x.dtype), strides)
    if 1 not in ctx.wanted:
        return result, ctx.nothing()
    small = e.op("exp", e.op("neg", e.op("abs", value)))
    return result, ctx.map(x.shape, e.cast(small, x.dtype), strides, "buffer")


@rules.lowers("threshold")
def threshold_rule(ctx: Context, x: Array, threshold: Number, value: Number) -> Array:
    return elementwise(ctx, x, lambda v: e.where(e.test("le", v, e.like(threshold, v)), e.like(value, v), v))


@rules.lowers("hardshrink")
def hardshrink(ctx: Context, x: Array, lambd: Number = 0.5) -> Array:
    def function(v: Expr) -> Expr:
        low, high = operand(ctx, -lambd, v.dtype), operand(ctx, lambd, v.dtype)
        return e.where(e.test("and", e.test("ge", v, low), e.test("le", v, high)), e.like(0, v), v)

    return elementwise(ctx, x, function)


@rules.lowers("softshrink")
def softshrink(ctx: Context, x: Array, lambd: Number = 0.5) -> Array:
    def function(v: Expr) -> Expr:
        inside = e.where(e.test("eq", v, v), e.like(0, v), v)  # which keeps NaN
        below = e.where(e.test("lt", v, e.like(-lambd, v)), e.add(v, e.like(lambd, v)), inside)
        return e.where(e.test("gt", v, e.like(lambd, v)), e.sub(v, e.like(lambd, v)), below)

    return elementwise(ctx, x, function)


@rules.lowers("glu")
def glu(ctx: Context, x: Array, dim: int = -1) -> Array:
    dim = wrap_dim(dim, x.rank)
    half = x.shape[dim] // 2
    dtype = compute(ctx)
    value = operand(ctx, slice_dim(x, dim, 0, half), dtype)
    gate = operand(ctx, slice_dim(x, dim, half, half), dtype)
    return ctx.result(e.mul(value, e.op("sigmoid", gate)))


@rules.lowers("logit", "special_logit")
def logit(ctx: Context, x: Array, eps: float | None = None) -> Array:
    if eps is not None and not eps <= 0.5:
        raise NotExpressible(
            "bounds that cross: eager's vectors and what is left of them take another one first"
        )

    def function(v: Expr) -> Expr:
        # Outside of [eps, 1 - eps] the bounds count; NaN stays.
        inner = v
        if eps is not None:
            low, high = e.like(eps, v), e.like(1 - eps, v)
            inner = e.where(e.test("lt", v, low), low, e.where(e.test("gt", v, high), high, v))
        return e.op("log", half_step(ctx, e.div(inner, half_step(ctx, e.sub(e.like(1, v), inner)))))

    return elementwise(ctx, x, function)
