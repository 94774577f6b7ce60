"""Functions in double arithmetic: float32 ones that are computed in double and rounded once at the end, and exp,
log, sigmoid, tanh and their like of float64.

Double has the room that makes float32 functions short: no overflow, no subnormals, and errors of 2^-35 vanish in the
final rounding. Two registers of doubles stand for one of floats.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.vecmath_payne_hanek import large_angles
from lampwork.standard import math

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
# ln 2 in two parts; the first has 33 bits, so that its product with an exponent is exact.
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
ROUNDER = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer, which stands in the low bits
ONE_BITS = 1023 << 52
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
HALF_PI = math.pi / 2
# pi / 2 in parts: for targets with fused multiplication, and (33 bits each) for those without.
HALF_PI_LOW = 6.123233995736766e-17
HALF_PI_33 = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
# Taylor's: the error of the first power left out is 2^-56 of r, where a table fitted to e ** r has one of 2^-51.
EXPM1_F64 = tuple(1 / math.factorial(power) for power in range(2, 14))
TINY = 2.0**-12  # below it sin, tan, asin, asinh, atanh, … of a float32 are the number itself


def _widen(b: Builder, x: Value) -> Value:
    return b.convert("fpext", x, "f64")


def _narrow(b: Builder, x: Value) -> Value:
    return b.convert("fptrunc", x, "f32")


# --- cores, double in and out -----------------------------------------------------------------------------------------


def reduce_exp(b: Builder, x: Value) -> tuple[Value, Value]:
    """x = n ln 2 + r: the bits that hold n at their low end, and r."""
    shifted = b.fma(x, LOG2_E, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    r = b.fma(n, -LN2_LOW, b.fma(n, -LN2_HIGH, x))
    return b.bitcast(shifted, "i64"), r


def scaled(b: Builder, x: Value, n_bits: Value) -> Value:
    """x * 2^n, where that is a normal number."""
    return b.bitcast(b.add(b.bitcast(x, "i64"), b.shl(n_bits, 52)), "f64")


def _expm1_of(b: Builder, r: Value, table: Sequence[float]) -> Value:
    return b.fma(b.mul(r, r), b.polynomial(r, table), r)


def _exp(b: Builder, x: Value) -> Value:
    """e ** x for |x| < 700."""
    n, r = reduce_exp(b, x)
    return scaled(b, b.add(_expm1_of(b, r, coefficients.EXP_SHORT), 1.0), n)


def _expm1(b: Builder, x: Value) -> Value:
    """e ** x - 1 for |x| < 700."""
    n, r = reduce_exp(b, x)
    scale = scaled(b, b.widen(b.const(1.0, "f64"), r.lanes), n)
    return b.fma(scale, _expm1_of(b, r, coefficients.EXP_SHORT), b.sub(scale, 1.0))


def _exp2(b: Builder, x: Value) -> Value:
    """2 ** x for |x| < 1000."""
    shifted = b.add(x, ROUNDER)
    r = b.mul(b.sub(x, b.sub(shifted, ROUNDER)), LN2)
    return scaled(b, b.add(_expm1_of(b, r, coefficients.EXP_SHORT), 1.0), b.bitcast(shifted, "i64"))


def split(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """x = 2^k (1 + f) with 1 + f about 1: k as it stands in the exponent of a double, k, and f, which is exact. x must
    be positive and normal."""
    bits = b.bitcast(x, "i64")
    biased = b.lshr(b.add(bits, ONE_BITS - SQRT_HALF_BITS), 52)
    # An integer below 2^52 in the mantissa of 2^52 is that many ones above it.
    k = b.sub(b.bitcast(b.or_(biased, 0x4330000000000000), "f64"), 2.0**52 + 1023)
    mantissa = b.sub(bits, b.sub(b.shl(biased, 52), ONE_BITS))
    return biased, k, b.sub(b.bitcast(mantissa, "f64"), 1.0)


def _split_log(b: Builder, x: Value, table: Sequence[float]) -> tuple[Value, Value]:
    """x = 2^k (1 + f) with 1 + f about 1: k, and log(1 + f). x must be positive and normal."""
    _, k, f = split(b, x)
    s = b.div(f, b.add(f, 2.0))
    z = b.mul(s, s)
    half = b.mul(b.mul(f, 0.5), f)
    inner = b.fma(z, b.polynomial(z, table), half)
    return k, b.sub(f, b.fma(b.neg(s), inner, half))


def _log(b: Builder, x: Value) -> Value:
    """The natural logarithm of a positive normal number."""
    k, low = _split_log(b, x, coefficients.LOG_SHORT)
    return b.fma(k, LN2, low)


def _log2(b: Builder, x: Value) -> Value:
    k, low = _split_log(b, x, coefficients.LOG_SHORT)
    return b.fma(low, LOG2_E, k)


def _atan_unit(b: Builder, z: Value) -> Value:
    """atan z for 0 <= z <= 1."""
    square = b.mul(z, z)
    return b.fma(b.mul(z, square), b.polynomial(square, coefficients.ATAN), z)


# --- exponentials -----------------------------------------------------------------------------------------------------


def clamped(b: Builder, x: Value, low: float, high: float) -> Value:
    """x within [low, high]; NaN stays."""
    return b.larger(low, b.smaller(high, x))


def sinh(b: Builder, x: Value) -> Value:
    t = _expm1(b, _widen(b, b.smaller(100.0, b.fabs(x))))
    return b.copysign(_narrow(b, b.mul(b.add(t, b.div(t, b.add(t, 1.0))), 0.5)), x)


def cosh(b: Builder, x: Value) -> Value:
    e = _exp(b, _widen(b, b.smaller(100.0, b.fabs(x))))
    return _narrow(b, b.mul(b.add(e, b.div(1.0, e)), 0.5))


def erfc(b: Builder, x: Value) -> Value:
    """exp(-x²) times a polynomial in (x - 3) / (x + 3), over 1 + 2x; 2 - erfc(-x) for negative x."""
    a = _widen(b, b.smaller(10.6, b.fabs(x)))
    q = b.div(b.sub(a, 3.0), b.add(a, 3.0))
    tail = b.mul(_exp(b, b.neg(b.mul(a, a))), b.polynomial(q, coefficients.ERFC))
    positive = b.div(tail, b.fma(a, 2.0, 1.0))
    return _narrow(b, b.select(b.cmp("lt", x, 0.0), b.sub(2.0, positive), positive))


# --- logarithms -------------------------------------------------------------------------------------------------------


def finish_log(b: Builder, argument: Value, result: Value) -> Value:
    """The logarithm of `argument`, with what its bits would get wrong: 0, negative numbers, infinity, NaN."""
    special = b.select(b.cmp("lt", argument, 0.0), float("nan"), argument)
    special = b.select(b.cmp("eq", argument, 0.0), float("-inf"), special)
    regular = b.and_(b.cmp("gt", argument, 0.0), b.cmp("lt", argument, float("inf")))
    return b.select(regular, result, special)


def asinh(b: Builder, x: Value) -> Value:
    a = _widen(b, b.fabs(x))
    argument = b.add(a, b.sqrt(b.fma(a, a, 1.0)))
    result = _narrow(b, finish_log(b, argument, _log(b, argument)))
    return b.copysign(b.select(b.cmp("lt", b.fabs(x), TINY), b.fabs(x), result), x)


def acosh(b: Builder, x: Value) -> Value:
    wide = _widen(b, x)
    argument = b.add(wide, b.sqrt(b.fma(wide, wide, -1.0)))
    argument = b.select(b.cmp("ge", wide, 1.0), argument, float("nan"))
    return _narrow(b, finish_log(b, argument, _log(b, argument)))


def atanh(b: Builder, x: Value) -> Value:
    a = _widen(b, b.fabs(x))
    argument = b.div(b.add(a, 1.0), b.sub(1.0, a))
    result = _narrow(b, b.mul(finish_log(b, argument, _log(b, argument)), 0.5))
    return b.copysign(b.select(b.cmp("lt", b.fabs(x), TINY), b.fabs(x), result), x)


# --- angles -----------------------------------------------------------------------------------------------------------


def _reduce_angle(b: Builder, x: Value) -> tuple[Value, Value]:
    """x = n pi/2 + r, |r| <= pi/4: the bits that hold n at their low end, and r. For |x| up to `angle_limit`; for
    every x on targets without a C library."""
    shifted = b.fma(x, 2 / math.pi, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    r = x
    for part in (HALF_PI, HALF_PI_LOW) if b.target.has_fma else HALF_PI_33:
        r = b.fma(n, -part, r)
    bits = b.bitcast(shifted, "i64")
    if b.target.has_libm:
        return bits, r
    bits, r = large_angles(b, x, angle_limit(b), (bits, r))
    return bits, r


def angle_limit(b: Builder) -> float:
    """Angles beyond this need more digits of pi than `_reduce_angle` has."""
    return 2.0**40 if b.target.has_fma else 2.0**20


def _sin_cos(b: Builder, r: Value) -> tuple[Value, Value]:
    square = b.mul(r, r)
    sine = b.fma(b.mul(r, square), b.polynomial(square, coefficients.SIN), r)
    rest = b.fma(b.mul(square, square), b.polynomial(square, coefficients.COS), 1.0)
    return sine, b.fma(square, -0.5, rest)


def _wave(b: Builder, x: Value, quarter: int) -> Value:
    """sin(x + quarter * pi/2)."""
    bits, r = _reduce_angle(b, _widen(b, x))
    turned = b.add(bits, quarter) if quarter else bits
    sine, cosine = _sin_cos(b, r)
    value = b.select(b.cmp("ne", b.and_(turned, 1), 0), cosine, sine)
    sign = b.shl(b.and_(turned, 2), 62)
    return _narrow(b, b.bitcast(b.xor(b.bitcast(value, "i64"), sign), "f64"))


def sin(b: Builder, x: Value) -> Value:
    return b.select(b.cmp("lt", b.fabs(x), TINY), x, _wave(b, x, 0))


def cos(b: Builder, x: Value) -> Value:
    return _wave(b, x, 1)


def tan(b: Builder, x: Value) -> Value:
    bits, r = _reduce_angle(b, _widen(b, x))
    sine, cosine = _sin_cos(b, r)
    odd = b.cmp("ne", b.and_(bits, 1), 0)
    value = b.div(b.select(odd, b.neg(cosine), sine), b.select(odd, sine, cosine))
    return b.select(b.cmp("lt", b.fabs(x), TINY), x, _narrow(b, value))


def atan(b: Builder, x: Value) -> Value:
    a = _widen(b, b.fabs(x))
    inverted = b.cmp("gt", a, 1.0)
    angle = _atan_unit(b, b.div(b.select(inverted, 1.0, a), b.select(inverted, a, 1.0)))
    return b.copysign(_narrow(b, b.select(inverted, b.sub(HALF_PI, angle), angle)), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    ay, ax = _widen(b, b.fabs(y)), _widen(b, b.fabs(x))
    steep = b.cmp("gt", ay, ax)
    low, high = b.select(steep, ax, ay), b.select(steep, ay, ax)
    ratio = b.div(low, high)
    ratio = b.select(b.cmp("eq", b.add(low, high), 0.0), 0.0, ratio)
    both = b.and_(b.cmp("eq", low, float("inf")), b.cmp("eq", high, float("inf")))
    ratio = b.select(both, 1.0, ratio)
    angle = _atan_unit(b, ratio)
    angle = b.select(steep, b.sub(HALF_PI, angle), angle)
    left = b.cmp("lt", b.bitcast(x, "i32"), 0)
    return b.copysign(_narrow(b, b.select(left, b.sub(math.pi, angle), angle)), y)


def _arc(b: Builder, x: Value) -> tuple[Value, Value]:
    """For |x| <= 0.5 asin |x|; beyond, asin sqrt((1 - |x|) / 2), and true."""
    a = _widen(b, b.fabs(x))
    beyond = b.cmp("gt", a, 0.5)
    square = b.select(beyond, b.mul(b.sub(1.0, a), 0.5), b.mul(a, a))
    z = b.select(beyond, b.sqrt(square), a)
    return b.fma(b.mul(z, square), b.polynomial(square, coefficients.ASIN), z), beyond


def asin(b: Builder, x: Value) -> Value:
    angle, beyond = _arc(b, x)
    return b.copysign(_narrow(b, b.select(beyond, b.fma(angle, -2.0, HALF_PI), angle)), x)


def acos(b: Builder, x: Value) -> Value:
    angle, beyond = _arc(b, x)
    negative = b.cmp("lt", x, 0.0)
    double = b.add(angle, angle)
    outer = b.select(negative, b.sub(math.pi, double), double)
    inner = b.select(negative, b.add(angle, HALF_PI), b.sub(HALF_PI, angle))
    return _narrow(b, b.select(beyond, outer, inner))


# --- powers -----------------------------------------------------------------------------------------------------------


def hypot(b: Builder, x: Value, y: Value) -> Value:
    wide_x, wide_y = _widen(b, x), _widen(b, y)
    length = _narrow(b, b.sqrt(b.fma(wide_x, wide_x, b.mul(wide_y, wide_y))))
    infinite = b.or_(b.cmp("eq", b.fabs(x), float("inf")), b.cmp("eq", b.fabs(y), float("inf")))
    return b.select(infinite, float("inf"), length)


def whole_power(b: Builder, x: Value, exponent: int) -> Value:
    """x to a whole power but 0, by repeated squaring."""
    base, rest = _widen(b, x), abs(exponent)
    product: Value | None = None
    while True:
        if rest & 1:
            product = base if product is None else b.mul(product, base)
        rest >>= 1
        if not rest:
            break
        base = b.mul(base, base)
    assert product is not None, "the exponent is not 0"
    return _narrow(b, product if exponent > 0 else b.div(1.0, product))


def pow_(b: Builder, x: Value, y: Value) -> Value:
    """x ** y with the special cases of C's pow."""
    a = b.fabs(x)
    logarithm = finish_base(b, a, _log2(b, _widen(b, a)))
    exponent = finish_exponent(b, x, y, b.mul(logarithm, _widen(b, y)))
    return finish_power(b, x, y, _narrow(b, _exp2(b, clamped(b, exponent, -200.0, 200.0))))


def finish_base(b: Builder, a: Value, logarithm: Value) -> Value:
    """The logarithm of a = |x|, of 0 and infinity too."""
    logarithm = b.select(b.cmp("eq", a, 0.0), float("-inf"), logarithm)
    return b.select(b.cmp("eq", a, float("inf")), float("inf"), logarithm)


def finish_exponent(b: Builder, x: Value, y: Value, exponent: Value) -> Value:
    """log |x| * y, of infinities and NaN too."""
    exponent = b.select(b.and_(b.cmp("eq", b.fabs(x), 1.0), b.cmp("ord", y, y)), 0.0, exponent)
    return b.select(b.cmp("uno", x, y), float("nan"), exponent)


def finish_power(b: Builder, x: Value, y: Value, magnitude: Value) -> Value:
    """x ** y, given |x| ** y."""
    integer, sign_bit = ("i32", 31) if x.dtype == "f32" else ("i64", 63)
    whole = b.cmp("eq", b.intrinsic("trunc", y), y)
    half = b.mul(y, 0.5)
    # Every float from 2^24 on is even, and every double from 2^53 on; infinities are whole, and even.
    odd = b.and_(whole, b.cmp("ne", b.intrinsic("trunc", half), half))
    sign = b.select(odd, b.bitcast(x, integer), 0)
    signed = b.bitcast(b.or_(b.bitcast(magnitude, integer), b.and_(sign, -(1 << sign_bit))), x.dtype)
    finite_negative = b.and_(b.cmp("lt", x, 0.0), b.cmp("gt", x, float("-inf")))
    signed = b.select(b.and_(finite_negative, b.not_(whole)), float("nan"), signed)
    return b.select(b.or_(b.cmp("eq", y, 0.0), b.cmp("eq", x, 1.0)), 1.0, signed)


# --- float64 ----------------------------------------------------------------------------------------------------------


def exp_f64(b: Builder, x: Value) -> Value:
    """e ** x of a double, subnormal results included."""
    n, r = reduce_exp(b, clamped(b, x, -750.0, 710.0))
    return scaled_far(b, b.add(_expm1_of(b, r, coefficients.EXP_F64), 1.0), n)


def scaled_far(b: Builder, p: Value, n: Value) -> Value:
    """p * 2^n of p about 1, whatever that is: infinite, subnormal or 0. n is in the low bits of an i64."""
    # 2^n may be too small or large for one factor: halve n as a number in the low bits.
    whole = b.sub(b.bitcast(n, "f64"), ROUNDER)
    half = b.add(b.mul(whole, 0.5), ROUNDER)
    other = b.add(b.sub(whole, b.sub(half, ROUNDER)), ROUNDER)
    one = b.widen(b.const(1.0, "f64"), p.lanes)
    partly = b.mul(p, scaled(b, one, b.bitcast(half, "i64")))
    return b.mul(partly, scaled(b, one, b.bitcast(other, "i64")))


def log_f64(b: Builder, x: Value) -> Value:
    """The natural logarithm of a double."""
    subnormal = b.cmp("lt", x, 2.0**-1022)
    scaled = b.select(subnormal, b.mul(x, 2.0**54), x)
    k, low = _split_log(b, scaled, coefficients.LOG_F64)
    k = b.sub(k, b.select(subnormal, b.const(54.0, "f64"), b.const(0.0, "f64")))
    return finish_log(b, x, b.fma(k, LN2_HIGH, b.fma(k, LN2_LOW, low)))


def sigmoid_f64(b: Builder, x: Value) -> Value:
    e = exp_f64(b, b.neg(b.fabs(x)))
    return b.div(b.select(b.cmp("ge", x, 0.0), 1.0, e), b.add(e, 1.0))


def expm1_f64(b: Builder, x: Value) -> Value:
    """e ** x - 1 of a double: near 0 as exact as x."""
    n, r = reduce_exp(b, clamped(b, x, -750.0, 709.0))
    n = b.select(b.cmp("lt", x, -60.0), b.bitcast(b.widen(b.const(ROUNDER - 60, "f64"), r.lanes), "i64"), n)
    scale = scaled(b, b.widen(b.const(1.0, "f64"), r.lanes), n)
    result = b.fma(scale, _expm1_of(b, r, EXPM1_F64), b.sub(scale, 1.0))
    # 2^1024 is no double: where e ** x nears the largest one, it is not different from e ** x - 1.
    result = b.select(b.cmp("gt", x, 700.0), exp_f64(b, x), result)
    return b.select(b.cmp("eq", x, 0.0), x, result)


def tanh_f64(b: Builder, x: Value) -> Value:
    """1 - 2 / (e ** 2|x| + 1), without cancellation: t / (t + 2) for t = e ** 2|x| - 1. From 22 on it is 1."""
    doubled = b.mul(clamped(b, b.fabs(x), 0.0, 22.0), 2.0)
    n, r = reduce_exp(b, doubled)
    scale = scaled(b, b.widen(b.const(1.0, "f64"), r.lanes), n)
    t = b.fma(scale, _expm1_of(b, r, EXPM1_F64), b.sub(scale, 1.0))
    return b.copysign(b.div(t, b.add(t, 2.0)), x)


def erf_f64(b: Builder, x: Value) -> Value:
    """A polynomial below 0.75; above, 1 minus exp(-x²) times one in (x - 3) / (x + 3). From 6 on it is 1."""
    magnitude = b.fabs(x)
    square = b.mul(magnitude, magnitude)
    small = b.fma(magnitude, b.polynomial(square, coefficients.ERF_F64), magnitude)
    a = b.smaller(6.0, magnitude)
    n, r = reduce_exp(b, b.neg(b.mul(a, a)))
    e = scaled(b, b.add(_expm1_of(b, r, coefficients.EXP_F64), 1.0), n)
    ratio = b.div(b.sub(a, 3.0), b.add(a, 3.0))
    large = b.sub(1.0, b.mul(e, b.polynomial(ratio, coefficients.ERF_TAIL_F64)))
    return b.copysign(b.select(b.cmp("lt", magnitude, 0.75), small, large), x)


def log1p_f64(b: Builder, x: Value) -> Value:
    """log(1 + x): that of the rounded sum, and what the rounding took, over the sum."""
    total = b.add(x, 1.0)
    lost = b.div(b.sub(x, b.sub(total, 1.0)), total)
    regular = b.and_(b.cmp("gt", total, 0.0), b.cmp("lt", total, float("inf")))
    logarithm = log_f64(b, total)
    result = b.select(regular, b.add(logarithm, lost), logarithm)
    return b.select(b.cmp("eq", x, 0.0), x, result)
