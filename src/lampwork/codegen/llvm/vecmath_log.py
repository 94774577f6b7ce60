"""Logarithms of float32 in float32, and softplus, which is one.

A number is 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2); the logarithm of 1 + f is a polynomial. log1p takes f
from x itself, so that nothing of a small x is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.vecmath_single import LN2_HIGH, LN2_LOW, exp_of
from lampwork.records import record

ONE_BITS = 0x3F800000
SQRT_HALF_BITS = 0x3F3504F3


@record
class _Base:
    """log(2^k (1 + f)) = k * step + (f * scale + f² q(f)), where q has the coefficients `table`.

    `step` and `scale` are in two parts: the first of `step` has so few bits that k times it is exact, the second of
    `scale` is what float32 leaves of it.
    """

    step: tuple[float, float]
    scale: tuple[float, float]
    table: Sequence[float]


_LOG2_E = (1.44269502162933349609, 1.92596299112661746887e-8)
_LOG10_E = (0.43429449200630187988, -1.0103050118726031315e-8)
_NATURAL = _Base((LN2_HIGH, LN2_LOW), (1.0, 0.0), coefficients.LOG_F32)
_BINARY = _Base((1.0, 0.0), _LOG2_E, coefficients.LOG2_F32)
_DECIMAL = _Base((0.301025390625, 4.60503898119521373889e-6), _LOG10_E, coefficients.LOG10_F32)


def _sum(b: Builder, base: _Base, k: Value, f: Value) -> Value:
    rest = b.mul(b.mul(f, f), b.polynomial(f, base.table))
    if base.scale[1]:
        rest = b.fma(f, base.scale[1], rest)
    if base.step[1]:
        rest = b.fma(k, base.step[1], rest)
    small = b.add(f, rest) if base.scale[0] == 1.0 else b.fma(f, base.scale[0], rest)
    return b.add(k, small) if base.step[0] == 1.0 else b.fma(k, base.step[0], small)


def _exponent(b: Builder, bits: Value) -> Value:
    """k, as an integer, of 2^k (1 + f)."""
    return b.ashr(b.sub(bits, SQRT_HALF_BITS), 23)


def _logarithm(b: Builder, x: Value, base: _Base) -> Value:
    """Subnormal numbers are scaled up first. 0, negative numbers, infinity and NaN are put right at the end."""
    tiny = b.cmp("lt", x, 2.0**-126)
    bits = b.bitcast(b.select(tiny, b.mul(x, 2.0**23), x), "i32")
    power = _exponent(b, bits)
    f = b.sub(b.bitcast(b.sub(bits, b.shl(power, 23)), "f32"), 1.0)
    k = b.convert("sitofp", power, "f32")
    k = b.select(tiny, b.sub(k, 23.0), k)
    return _finish(b, x, _sum(b, base, k, f))


def _finish(b: Builder, argument: Value, result: Value) -> Value:
    result = b.select(b.cmp("lt", argument, float("inf")), result, argument)
    result = b.select(b.cmp("eq", argument, 0.0), float("-inf"), result)
    return b.select(b.cmp("lt", argument, 0.0), float("nan"), result)


def log(b: Builder, x: Value) -> Value:
    return _logarithm(b, x, _NATURAL)


def log2(b: Builder, x: Value) -> Value:
    return _logarithm(b, x, _BINARY)


def log10(b: Builder, x: Value) -> Value:
    return _logarithm(b, x, _DECIMAL)


def log1p(b: Builder, x: Value) -> Value:
    """1 + x decides about k; then f = x / 2^k + (1 / 2^k - 1), rounded once, which is x itself for k = 0."""
    one_more = b.add(x, 1.0)
    power = _exponent(b, b.bitcast(one_more, "i32"))
    # 4 / 2^k, since 2^-128 is no normal number.
    scale = b.bitcast(b.sub(129 << 23, b.shl(power, 23)), "f32")
    f = b.fma(b.mul(x, 0.25), scale, b.fma(scale, 0.25, -1.0))
    result = _finish(b, one_more, _sum(b, _NATURAL, b.convert("sitofp", power, "f32"), f))
    # So that -0.0, and what loses bits when it is divided by 4, stays.
    return b.select(b.cmp("lt", b.fabs(x), 2.0**-28), x, result)


def softplus(b: Builder, x: Value) -> Value:
    """log(1 + e^x), as max(x, 0) + log(1 + e^-|x|): the second is at most log 2, and a polynomial."""
    e = exp_of(b, b.larger(-105.0, b.neg(b.fabs(x))))
    # e comes last: the other terms are mostly smaller, and each sum is rounded.
    return b.add(e, b.fma(b.mul(e, e), b.polynomial(e, coefficients.LOG1P_UNIT_F32), b.larger(0.0, x)))
