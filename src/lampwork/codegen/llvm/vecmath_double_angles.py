"""sin, cos, tan and their inverses of float64, within 2 ulp, for targets with fused multiplication."""

from __future__ import annotations

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm import vecmath_pairs as pairs
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.vecmath_pairs import Pair
from lampwork.codegen.llvm.vecmath_payne_hanek import HALF_PI, HALF_PI_LOW, large_angles
from lampwork.codegen.llvm.vecmath_wide import ROUNDER
from lampwork.standard import math

HALF_PI_LAST = -1.4973849048591698e-33  # what HALF_PI and HALF_PI_LOW lack of pi/2, to 2^-163
_LIMIT = 2.0**44  # larger angles are Payne and Hanek's
_TINY = 2.0**-28  # below it sin, tan, asin and atan of a double are the number itself
_TAN_EIGHTH_PI = 0.41421356237309503


# --- sin, cos, tan ----------------------------------------------------------------------------------------------------


def _reduced(b: Builder, x: Value) -> tuple[Value, Pair]:
    """x = n pi/2 + r, |r| little above pi/4 at most: an i64 with n at its low end, and r."""
    shifted = b.fma(x, 2 / math.pi, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    # The first difference is exact, and so is the product of n and the second part.
    taken, lost = pairs.multiply(b, n, HALF_PI_LOW)
    high, low = pairs.add(b, b.fma(n, -HALF_PI, x), b.neg(taken))
    low = b.fma(n, -HALF_PI_LAST, b.sub(low, lost))
    bits, high, low = large_angles(b, x, _LIMIT, (b.bitcast(shifted, "i64"), high, low))
    return bits, (high, low)


def _sine(b: Builder, r: Pair, square: Value) -> Pair:
    """sin r as r and what is added to it."""
    cubic = b.mul(b.mul(r[0], square), b.polynomial(square, coefficients.SIN_F64))
    return r[0], b.add(cubic, b.fma(b.mul(square, -0.5), r[1], r[1]))


def _cosine(b: Builder, r: Pair, square: Value) -> Pair:
    half = b.mul(square, 0.5)
    high, low = pairs.add_smaller(b, 1.0, b.neg(half))
    fourth = b.mul(b.mul(square, square), b.polynomial(square, coefficients.COS_F64))
    return high, b.add(low, b.fma(b.neg(r[0]), r[1], fourth))


def _either(b: Builder, condition: Value, x: Pair, y: Pair) -> Pair:
    return b.select(condition, x[0], y[0]), b.select(condition, x[1], y[1])


def _wave(b: Builder, x: Value, quarter: int) -> Value:
    """sin(x + quarter * pi/2)."""
    bits, r = _reduced(b, x)
    turned = b.add(bits, quarter) if quarter else bits
    square = b.mul(r[0], r[0])
    odd = b.cmp("ne", b.and_(turned, 1), 0)
    value = b.add(*_either(b, odd, _cosine(b, r, square), _sine(b, r, square)))
    return b.bitcast(b.xor(b.bitcast(value, "i64"), b.shl(b.and_(turned, 2), 62)), "f64")


def sin(b: Builder, x: Value) -> Value:
    return b.select(b.cmp("lt", b.fabs(x), _TINY), x, _wave(b, x, 0))


def cos(b: Builder, x: Value) -> Value:
    return _wave(b, x, 1)


def tan(b: Builder, x: Value) -> Value:
    bits, r = _reduced(b, x)
    square = b.mul(r[0], r[0])
    sine, cosine = (pairs.add_smaller(b, *wave(b, r, square)) for wave in (_sine, _cosine))
    odd = b.cmp("ne", b.and_(bits, 1), 0)
    above, below = _either(b, odd, cosine, sine), _either(b, odd, sine, cosine)
    value = b.add(*pairs.quotient(b, above, below))
    value = b.select(odd, b.neg(value), value)
    return b.select(b.cmp("lt", b.fabs(x), _TINY), x, value)


# --- asin, acos -------------------------------------------------------------------------------------------------------


def _arc(b: Builder, x: Value) -> tuple[Value, Pair]:
    """Whether |x| > 0.5, and then asin sqrt((1 - |x|) / 2), else asin |x|."""
    a = b.fabs(x)
    beyond = b.cmp("gt", a, 0.5)
    square = b.select(beyond, b.mul(b.sub(1.0, a), 0.5), b.mul(a, a))
    root = pairs.root(b, (square, b.const(0.0, "f64")))
    high, low = b.select(beyond, root[0], a), b.select(beyond, root[1], 0.0)
    return beyond, (high, b.fma(b.mul(high, square), b.polynomial(square, coefficients.ASIN_F64), low))


def _less(b: Builder, quarters: Value, angle: Pair, factor: Value) -> Value:
    """quarters * pi/2 + factor * angle, where the former is not smaller or 0; both numbers are powers of 2, or 0."""
    high, low = pairs.add_smaller(b, b.mul(quarters, HALF_PI), b.mul(factor, angle[0]))
    return b.add(high, b.fma(factor, angle[1], b.fma(quarters, HALF_PI_LOW, low)))


def asin(b: Builder, x: Value) -> Value:
    beyond, angle = _arc(b, x)
    result = _less(
        b, b.select(beyond, b.const(1.0, "f64"), 0.0), angle, b.select(beyond, b.const(-2.0, "f64"), 1.0)
    )
    return b.copysign(b.select(b.cmp("lt", b.fabs(x), _TINY), b.fabs(x), result), x)


def acos(b: Builder, x: Value) -> Value:
    beyond, angle = _arc(b, x)
    negative = b.cmp("lt", x, 0.0)
    quarters = b.select(beyond, b.select(negative, b.const(2.0, "f64"), 0.0), 1.0)
    factor = b.select(beyond, b.const(2.0, "f64"), 1.0)
    factor = b.select(b.xor(beyond, negative), factor, b.neg(factor))
    return _less(b, quarters, angle, factor)


# --- atan, atan2 ------------------------------------------------------------------------------------------------------


def _direction(b: Builder, low: Value, high: Value, steep: Value, left: Value | None) -> Value:
    """atan(low / high), 0 <= low <= high; that from pi/2 where `steep`, and then from pi where `left`. 1 / high is a
    normal number.

    A quotient t above tan(pi/8) is turned by pi/4 to (t - 1) / (t + 1).
    """
    turned = b.cmp("gt", low, b.mul(high, _TAN_EIGHTH_PI))
    zero = b.const(0.0, "f64")
    above = _either(b, turned, pairs.add(b, low, b.neg(high)), (low, zero))
    below = _either(b, turned, pairs.add(b, high, low), (high, zero))
    t, rest = pairs.quotient(b, above, below)
    square = b.mul(t, t)
    rest = b.fma(b.mul(t, square), b.polynomial(square, coefficients.ATAN_F64), rest)
    eighths = b.select(turned, b.const(1.0, "f64"), 0.0)
    eighths = b.select(steep, b.sub(2.0, eighths), eighths)
    down = steep
    if left is not None:
        eighths = b.select(left, b.sub(4.0, eighths), eighths)
        down = b.xor(steep, left)
    t, rest = b.select(down, b.neg(t), t), b.select(down, b.neg(rest), rest)
    base, lost = pairs.multiply(b, eighths, HALF_PI / 2)
    angle, low_part = pairs.add_smaller(b, base, t)
    return b.add(angle, b.add(low_part, b.fma(eighths, HALF_PI_LOW / 2, b.add(rest, lost))))


def atan(b: Builder, x: Value) -> Value:
    a = b.fabs(x)
    steep = b.cmp("gt", a, 1.0)
    limited = b.smaller(2.0**60, a)
    result = _direction(b, b.select(steep, 1.0, limited), b.select(steep, limited, 1.0), steep, None)
    return b.copysign(b.select(b.cmp("lt", a, _TINY), a, result), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    ay, ax = b.fabs(y), b.fabs(x)
    steep = b.cmp("gt", ay, ax)
    low, high = b.select(steep, ax, ay), b.select(steep, ay, ax)
    infinite = b.cmp("eq", high, float("inf"))
    low = b.select(infinite, b.select(b.cmp("eq", low, float("inf")), b.const(1.0, "f64"), 0.0), low)
    high = b.select(b.or_(infinite, b.cmp("eq", high, 0.0)), 1.0, high)
    scale = b.select(b.cmp("gt", high, 2.0**900), b.const(2.0**-200, "f64"), 1.0)
    scale = b.select(b.cmp("lt", high, 2.0**-800), 2.0**200, scale)
    left = b.cmp("lt", b.bitcast(x, "i64"), 0)
    angle = _direction(b, b.mul(low, scale), b.mul(high, scale), steep, left)
    return b.copysign(b.select(b.cmp("uno", x, y), float("nan"), angle), y)
