"""Logarithms, powers, hyperbolic functions and their inverses, erfc and hypot of float64, within 2 ulp, for targets
with fused multiplication.

A logarithm is made as a pair of doubles (vecmath_pairs.py), right to 2^-65 of itself: as exact as a power needs it,
whose exponent may have ten bits before the point.
"""

from __future__ import annotations

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm import vecmath_pairs as pairs
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.vecmath_pairs import Pair
from lampwork.codegen.llvm.vecmath_wide import (
    LN2,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    ROUNDER,
    clamped,
    finish_base,
    finish_exponent,
    finish_log,
    finish_power,
    scaled,
    scaled_far,
    split,
)

_LOG2_E_LOW = 2.0355273740931033e-17
_LN2_REST = 2.3190468138462996e-17
_LOG10_2 = (0.3010299956639812, -2.8037281277851704e-18)
_SQRT_HALF = (0.7071067811865476, -4.833646656726457e-17)
_TWO_THIRDS = (2 / 3, 3.700743415417188e-17)
_TINY = 2.0**-28  # below it asinh and atanh of a double are the number itself


# --- logarithms -------------------------------------------------------------------------------------------------------


def _log_near_one(b: Builder, f: Value, low: Value) -> Pair:
    """log(1 + f + low), of 1 + f between sqrt(1/2) and sqrt(2): 2s + s³ (2/3 + s² q(s²)) with s = f / (2 + f)."""
    above = pairs.add_smaller(b, f, low)
    two, lost = pairs.add_smaller(b, 2.0, above[0])
    s = pairs.add_smaller(b, *pairs.quotient(b, above, (two, b.add(lost, above[1]))))
    square = pairs.product(b, s, s)
    rest = b.mul(square[0], b.polynomial(square[0], coefficients.LOG_TAIL_F64))
    factor, lost = pairs.add_smaller(b, _TWO_THIRDS[0], rest)
    cubic = pairs.product(b, s, pairs.product(b, square, (factor, b.add(lost, _TWO_THIRDS[1]))))
    high, low = pairs.add_smaller(b, b.mul(s[0], 2.0), cubic[0])
    return high, b.add(low, b.fma(s[1], 2.0, cubic[1]))


def _split(b: Builder, x: Value) -> tuple[Value, Value]:
    """x = 2^k (1 + f) of a positive number, subnormal ones too: k and f."""
    subnormal = b.cmp("lt", x, 2.0**-1022)
    _, k, f = split(b, b.select(subnormal, b.mul(x, 2.0**54), x))
    return b.select(subnormal, b.sub(k, 54.0), k), f


def _log2(b: Builder, x: Value) -> Pair:
    """The binary logarithm of a positive number."""
    k, f = _split(b, x)
    natural = pairs.add_smaller(b, *_log_near_one(b, f, b.const(0.0, "f64")))
    fraction = pairs.product(b, natural, (LOG2_E, _LOG2_E_LOW))
    high, low = pairs.add_smaller(b, k, fraction[0])
    return high, b.add(low, fraction[1])


def log2(b: Builder, x: Value) -> Value:
    return finish_log(b, x, b.add(*_log2(b, x)))


def log10(b: Builder, x: Value) -> Value:
    return finish_log(b, x, b.add(*pairs.product(b, _log2(b, x), _LOG10_2)))


def _log(b: Builder, x: Pair, more: Value | None = None) -> Value:
    """The natural logarithm of a pair, 1 or larger, times 2^more."""
    biased, k, f = split(b, x[0])
    # Times 2^(1 - k), which is 0 for the largest numbers: the second one counts near 1.
    low = b.mul(b.mul(x[1], 0.5), b.bitcast(b.shl(b.sub(2047, biased), 52), "f64"))
    near = _log_near_one(b, f, low)
    k = k if more is None else b.add(k, more)
    high, rest = pairs.add_smaller(b, b.mul(k, LN2_HIGH), near[0])
    return b.add(high, b.add(rest, b.fma(k, LN2_LOW, near[1])))


def asinh(b: Builder, x: Value) -> Value:
    """log(a + sqrt(a² + 1)); of large ones log 2a."""
    a = b.fabs(x)
    argument, more = _with_root(b, a, 1.0)
    result = b.select(b.cmp("lt", a, float("inf")), _log(b, argument, more), a)
    return b.copysign(b.select(b.cmp("lt", a, _TINY), a, result), x)


def acosh(b: Builder, x: Value) -> Value:
    """log(x + sqrt(x² - 1)); of large ones log 2x."""
    argument, more = _with_root(b, x, -1.0)
    result = b.select(b.cmp("lt", x, float("inf")), _log(b, argument, more), x)
    return b.select(b.cmp("ge", x, 1.0), result, float("nan"))


def _with_root(b: Builder, a: Value, change: float) -> tuple[Pair, Value]:
    """a + sqrt(a² + change), and 0; where that is 2a, a and 1."""
    large = b.cmp("gt", a, 2.0**30)
    limited = b.smaller(2.0**30, a)
    square, low = pairs.multiply(b, limited, limited)
    square, lost = pairs.add(b, square, change)
    root = pairs.root(b, pairs.add_smaller(b, square, b.add(low, lost)))
    # Of a small `a` the root is the larger one.
    high, low = pairs.add(b, root[0], limited)
    pair = b.select(large, a, high), b.select(large, 0.0, b.add(low, root[1]))
    return pair, b.select(large, b.const(1.0, "f64"), 0.0)


def atanh(b: Builder, x: Value) -> Value:
    """log(1 + 2a / (1 - a)) / 2."""
    a = b.fabs(x)
    zero = b.const(0.0, "f64")
    ratio = pairs.quotient(b, (b.add(a, a), zero), pairs.add_smaller(b, 1.0, b.neg(a)))
    high, low = pairs.add(b, ratio[0], 1.0)
    result = b.mul(_log(b, (high, b.add(low, ratio[1]))), 0.5)
    result = b.select(b.cmp("eq", a, 1.0), float("inf"), b.select(b.cmp("lt", a, 1.0), result, float("nan")))
    return b.copysign(b.select(b.cmp("lt", a, _TINY), a, result), x)


# --- exponentials -----------------------------------------------------------------------------------------------------


def _exp_near_zero(b: Builder, r: Value, low: Value) -> Pair:
    """e ** (r + low) for |r| <= ln 2 / 2, where `low` is at most the rounding error of such a number."""
    high, lost = pairs.add_smaller(b, 1.0, r)
    rest = b.fma(b.mul(r, r), b.polynomial(r, coefficients.EXP_F64), b.add(low, lost))
    return pairs.add_smaller(b, high, rest)


def _exp(b: Builder, x: Value, low: Value | None = None) -> tuple[Value, Pair]:
    """e ** (x + low) is 2^n times a pair: an i64 with n at its low end, and the pair. For |x| < 2^11."""
    shifted = b.fma(x, LOG2_E, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    exact = b.fma(n, -LN2_HIGH, x)
    r = b.fma(n, -LN2_LOW, exact)
    rest = b.fma(n, -LN2_LOW, b.sub(exact, r))
    if low is not None:
        r, rest = pairs.add(b, r, b.add(rest, low))
    return b.bitcast(shifted, "i64"), _exp_near_zero(b, r, rest)


def _exp2(b: Builder, x: Value, low: Value | None = None) -> Value:
    """2 ** (x + low) for |x| <= 1100."""
    shifted = b.add(x, ROUNDER)
    rest = b.sub(x, b.sub(shifted, ROUNDER))
    r, lost = pairs.multiply(b, rest, LN2)
    lost = b.fma(rest, _LN2_REST, lost)
    if low is not None:
        r, lost = pairs.add(b, r, b.fma(low, LN2, lost))
    return scaled_far(b, b.add(*_exp_near_zero(b, r, lost)), b.bitcast(shifted, "i64"))


def exp2(b: Builder, x: Value) -> Value:
    return _exp2(b, clamped(b, x, -1100.0, 1100.0))


def pow_(b: Builder, x: Value, y: Value) -> Value:
    """x ** y with the special cases of C's pow."""
    a = b.fabs(x)
    logarithm, rest = _log2(b, a)
    logarithm = finish_base(b, a, logarithm)
    product, lost = pairs.multiply(b, logarithm, y)
    low = b.fma(rest, y, lost)
    low = b.select(b.cmp("lt", b.fabs(product), 1100.0), low, 0.0)
    exponent = clamped(b, finish_exponent(b, x, y, product), -1100.0, 1100.0)
    return finish_power(b, x, y, _exp2(b, exponent, low))


def sinh(b: Builder, x: Value) -> Value:
    """A polynomial below 1, (e ** a - e ** -a) / 2 above."""
    a = b.fabs(x)
    square = b.mul(a, a)
    small = b.fma(b.mul(a, square), b.polynomial(square, coefficients.SINH_F64), a)
    return b.copysign(b.select(b.cmp("lt", a, 1.0), small, _half_sum(b, a, -1.0)), x)


def cosh(b: Builder, x: Value) -> Value:
    return _half_sum(b, b.fabs(x), 1.0)


def _half_sum(b: Builder, a: Value, sign: float) -> Value:
    """(e ** a + sign * e ** -a) / 2, of a >= 0."""
    n, e = _exp(b, clamped(b, a, 0.0, 710.5))
    # A quarter of e ** a is finite where a half is not.
    quarter = b.sub(n, 2)
    scale = scaled(b, b.widen(b.const(1.0, "f64"), a.lanes), quarter)
    high, low = b.mul(e[0], scale), b.mul(e[1], scale)
    total = b.add(high, b.add(low, b.div(sign / 16, high)))
    return b.add(total, total)


def erfc(b: Builder, x: Value) -> Value:
    return _erfc(b, x, b.const(0.0, "f64"))


def ndtr(b: Builder, x: Value) -> Value:
    """erfc(-x sqrt(1/2)) / 2: the argument as a pair, since in the tail its rounding error would count 1000 times."""
    high = b.mul(x, -_SQRT_HALF[0])
    low = b.fma(x, -_SQRT_HALF[1], b.fma(x, -_SQRT_HALF[0], b.neg(high)))
    return b.mul(_erfc(b, high, b.select(b.cmp("lt", b.fabs(x), 64.0), low, 0.0)), 0.5)


def _erfc(b: Builder, x: Value, low: Value) -> Value:
    """erfc(x + low): near 0 as 1 - erf; above, exp(-a²) times a polynomial in (a - 3.5) / (a + 3.5), over 1 + 2a."""
    square = b.mul(x, x)
    one, lost = pairs.add_smaller(b, 1.0, b.neg(x))
    near = b.sub(lost, b.fma(x, b.polynomial(square, coefficients.ERF_F64), low))
    tail = _erfc_tail(b, clamped(b, b.fabs(x), 0.0, 28.0), b.select(b.cmp("lt", x, 0.0), b.neg(low), low))
    far = b.select(b.cmp("lt", x, 0.0), b.sub(2.0, tail), tail)
    return b.select(b.cmp("lt", b.fabs(x), 0.75), b.add(one, near), far)


def _erfc_tail(b: Builder, a: Value, low: Value) -> Value:
    square, lost = pairs.multiply(b, a, a)
    double = b.add(a, a)
    n, e = _exp(b, b.neg(square), b.neg(b.fma(double, low, lost)))
    ratio = b.div(b.sub(a, 3.5), b.add(a, 3.5))
    rest = b.mul(ratio, b.polynomial(ratio, coefficients.ERFC_F64[1:]))
    above = pairs.product(b, e, pairs.add_smaller(b, coefficients.ERFC_F64[0], rest))
    below, left = pairs.add_smaller(b, double, 1.0)
    quotient = pairs.quotient(b, above, (below, b.fma(low, 2.0, left)))
    return scaled_far(b, b.add(*quotient), n)


# --- roots ------------------------------------------------------------------------------------------------------------


def hypot(b: Builder, x: Value, y: Value) -> Value:
    """sqrt(x² + y²), both scaled by a power of 2 where a square would be too large or small."""
    ax, ay = b.fabs(x), b.fabs(y)
    largest = b.larger(ax, ay)
    huge, small = b.cmp("gt", largest, 2.0**500), b.cmp("lt", largest, 2.0**-400)
    scale = b.select(huge, b.const(2.0**-600, "f64"), b.select(small, b.const(2.0**600, "f64"), 1.0))
    back = b.select(huge, b.const(2.0**600, "f64"), b.select(small, b.const(2.0**-600, "f64"), 1.0))
    larger, smaller = b.mul(largest, scale), b.mul(b.smaller(ax, ay), scale)
    length = b.mul(b.sqrt(b.fma(larger, larger, b.mul(smaller, smaller))), back)
    infinite = b.or_(b.cmp("eq", ax, float("inf")), b.cmp("eq", ay, float("inf")))
    return b.select(infinite, float("inf"), b.select(b.cmp("uno", x, y), float("nan"), length))
