"""exp, sigmoid, tanh, erf and their like, of float32, in float32: what models spend their time on.

Each is a reduction to a short interval and a polynomial (coefficients.py), without branches. Errors, over all floats:
see tests/unit/codegen/test_codegen_vecmath.py, which holds them to 2 ulp and measures about 1.
"""

from __future__ import annotations

from collections.abc import Callable

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.shuffles import by_register

LOG2_E = 1.4426950408889634
LOG2_E_LOW = 1.925963033500011e-08  # what LOG2_E as a float lacks
# ln 2 in two parts; the first has so few bits that n * LN2_HIGH is exact.
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.42860682030941723212e-6
# Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
ROUNDER = 12582912.0
ROUNDER_BITS = 0x4B400000
MOST_POWER = 126.0  # |n| up to which 2^n is a normal number


def exp(b: Builder, x: Value) -> Value:
    """e ** x: infinity above 88.7, subnormal and then 0 below -87.3."""
    if b.target.exp2 is not None and b.sums_powers:
        return _power_at_once(b, x, b.target.exp2, 1.0)
    if b.target.exp2 is not None:
        if b.coarse:
            # The root is a normal number where the power is not.
            root = _power_at_once(b, x, b.target.exp2, 0.5)
            return b.mul(root, root)
        return _exp_by_instruction(b, x, b.target.exp2)
    # Beyond these the result is infinite or 0; the order of operands lets NaN pass.
    return exp_of(b, b.larger(-105.0, b.smaller(90.0, x)))


def exp_of(b: Builder, x: Value, *, full_range: bool = True, careful: bool = False) -> Value:
    """exp(x) for -105 <= x <= 90; without `full_range` the result must be a normal number. `careful` spends three
    instructions on a quarter of an ulp."""
    shifted, n, r = _reduced(b, x)
    return _scaled(b, _exp_rest(b, r, careful=careful), shifted, n, full_range=full_range)


def exp2(b: Builder, x: Value) -> Value:
    """2 ** x."""
    return _exp2_below(b, b.smaller(129.0, x))


def _exp2_below(b: Builder, x: Value) -> Value:
    """2 ** x for x <= 129."""
    if b.target.exp2 is not None:
        n = _near(b, b.intrinsic("roundeven", x))
        return _scaled_once(b, b.target.exp2(b, b.sub(x, n)), n)
    clamped = b.larger(-151.0, x)
    shifted = b.add(clamped, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    t = b.sub(clamped, n)
    return _scaled(b, b.fma(t, b.polynomial(t, coefficients.EXP2_F32), 1.0), shifted, n, full_range=True)


def _exp_by_instruction(b: Builder, x: Value, exp2: Callable[[Builder, Value], Value]) -> Value:
    """e ** x for every x, as 2^n times 2^t with |t| <= 1/2. Where n is at its limit t goes on: to where 2^t, or its
    product with 2^n, is infinite, subnormal or 0. The error of t is 2^-25, a third of an ulp of the result.

    The limits of n are those of a number between 0 and 1, to which cards keep a sum without another instruction.
    """
    part = b.fma(x, LOG2_E / (2 * MOST_POWER), 0.5)
    zero, one = (b.widen(b.const(limit, "f32"), part.lanes) for limit in (0.0, 1.0))
    part = b.intrinsic("minnum", b.intrinsic("maxnum", part, zero), one)
    # What is added last puts n + 127, the exponent of 2^n, into the low bits.
    shifted = b.fma(part, 2 * MOST_POWER, ROUNDER + (127.0 - MOST_POWER))
    n = b.sub(shifted, ROUNDER + 127.0)
    t = b.fma(x, LOG2_E_LOW, b.fma(x, LOG2_E, b.neg(n)))
    return b.mul(exp2(b, t), b.bitcast(b.shl(b.bitcast(shifted, "i32"), 23), "f32"))


def _near(b: Builder, n: Value) -> Value:
    """n, limited so that 2^n is a normal number."""
    lanes = n.lanes
    n = b.intrinsic("minnum", n, b.widen(b.const(126.0, "f32"), lanes))
    return b.intrinsic("maxnum", n, b.widen(b.const(-126.0, "f32"), lanes))


def _scaled_once(b: Builder, p: Value, n: Value) -> Value:
    """p * 2^n for |n| <= 126."""
    return b.mul(p, _power_of_two(b, b.sub(b.bitcast(b.add(n, ROUNDER), "i32"), ROUNDER_BITS)))


def expm1(b: Builder, x: Value) -> Value:
    """e ** x - 1, as 2^n (e ** r - 1) + (2^n - 1)."""
    # Beyond 88.8 the result is infinite, as that of 89; below -18 it is -1.
    shifted, _, r = _reduced(b, b.larger(-18.0, b.smaller(89.0, x)))
    # Half of 2^n, since 2^n itself may be infinite where the result is not.
    half = _power_of_two(b, b.sub(b.bitcast(shifted, "i32"), ROUNDER_BITS + 1))
    result = b.fma(half, _expm1_rest(b, r), b.sub(half, 0.5))
    return b.copysign(b.add(result, result), x)


def _reduced(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """x = n ln 2 + r: the float that holds n in its low bits, n, and r."""
    shifted = b.fma(x, LOG2_E, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    r = b.fma(n, -LN2_HIGH, x)
    return shifted, n, b.fma(n, -LN2_LOW, r)


def _expm1_rest(b: Builder, r: Value) -> Value:
    """e ** r - 1 for |r| <= ln 2 / 2."""
    return b.fma(b.mul(r, r), b.polynomial(r, coefficients.EXP_F32), r)


def _exp_rest(b: Builder, r: Value, *, careful: bool) -> Value:
    """e ** r for |r| <= ln 2 / 2."""
    if not careful:
        return b.add(_expm1_rest(b, r), 1.0)
    # 1 + r as a rounded sum and what the rounding left over.
    one = b.add(r, 1.0)
    rest = b.sub(r, b.sub(one, 1.0))
    return b.add(one, b.fma(b.mul(r, r), b.polynomial(r, coefficients.EXP_F32), rest))


def _scaled(b: Builder, p: Value, shifted: Value, n: Value, *, full_range: bool) -> Value:
    """p * 2^n, where `shifted` holds n in its low bits."""
    if b.target.scale is not None and (scaled := by_register(b, b.target.scale, p, n)) is not None:
        return scaled
    power = b.sub(b.bitcast(shifted, "i32"), ROUNDER_BITS)
    if not full_range:
        return b.mul(p, _power_of_two(b, power))
    # In two steps, since 2^n itself may be too large or too small for a float.
    half = b.ashr(power, 1)
    return b.mul(b.mul(p, _power_of_two(b, half)), _power_of_two(b, b.sub(power, half)))


def _power_of_two(b: Builder, n: Value) -> Value:
    return b.bitcast(b.shl(b.add(n, 127), 23), "f32")


def _power_at_once(b: Builder, x: Value, exp2: Callable[[Builder, Value], Value], scale: float) -> Value:
    """e ** (scale * x), to 2^-17 of itself, and to 2^-24 of 1 for a negative power: for what is rounded to a half type
    (`Builder.coarse`), or added to larger ones (`Builder.sums_powers`)."""
    return exp2(b, b.mul(x, scale * LOG2_E))


DOWN = 32.0
"""By how many powers of two a denominator is made smaller, so that it is finite where 1 over it is not 0."""


def _sigmoid_by_instruction(b: Builder, x: Value, exp2: Callable[[Builder, Value], Value]) -> Value:
    one = b.const(1.0, "f32")
    if b.coarse:
        # 1 / (1 + e ** -x), both times 2^-32: subnormal results, too, have a denominator.
        power = exp2(b, b.fma(x, -LOG2_E, -DOWN))
        return b.mul(b.quotient(one, b.add(power, 2.0**-DOWN), tiny=False), 2.0**-DOWN)
    e = _exp_by_instruction(b, b.neg(b.fabs(x)), exp2)
    numerator = b.select(b.cmp("ge", x, 0.0), 1.0, e)
    # The quotient, and what of the numerator is left of it: the denominator counts as it is before it is rounded.
    near = b.quotient(one, b.add(e, 1.0), tiny=False)
    quotient = b.mul(numerator, near)
    left = b.fma(b.neg(quotient), e, b.sub(numerator, quotient))
    return b.fma(left, near, quotient)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e ** -x), as e / (1 + e) for negative x: so that it does not fall to 0 before it must."""
    if b.target.exp2 is not None:
        return _sigmoid_by_instruction(b, x, b.target.exp2)
    e = exp_of(b, b.larger(-105.0, b.neg(b.fabs(x))), careful=True)
    numerator = b.select(b.cmp("ge", x, 0.0), 1.0, e)
    return b.div(numerator, b.add(e, 1.0))


def _with_sign(b: Builder, magnitude: Value, x: Value) -> Value:
    """`magnitude`, which has no sign, with that of x: as integers, since LLVM would round a copysign to a half type
    first and go on there number by number."""
    sign = b.and_(b.bitcast(x, "i32"), -1 << 31)
    return b.bitcast(b.or_(b.bitcast(magnitude, "i32"), sign), "f32")


def tanh(b: Builder, x: Value) -> Value:
    """A polynomial below 0.4, t / (t + 2) with t = e ** 2|x| - 1 above."""
    a = b.fabs(x)
    if b.coarse and b.target.exp2 is not None:
        # Below 0.2 the difference would lose digits.
        square = b.mul(a, a)
        small = b.fma(b.mul(a, square), b.fma(square, 2 / 15, -1 / 3), a)
        power = _power_at_once(b, a, b.target.exp2, 2.0)
        part = b.quotient(b.const(1.0, "f32"), b.add(power, 1.0), tiny=False)
        return _with_sign(b, b.select(b.cmp("lt", a, 0.2), small, b.fma(part, -2.0, 1.0)), x)
    square = b.mul(a, a)
    if b.target.exp2 is not None:
        # From 0.55 on the fraction is less than the result, and so are its errors.
        small = b.fma(b.mul(a, square), b.polynomial(square, coefficients.TANH_WIDE_F32), a)
        power = _power_at_once(b, a, b.target.exp2, 2.0)
        part = b.quotient(b.const(1.0, "f32"), b.add(power, 1.0), tiny=False)
        return _with_sign(b, b.select(b.cmp("lt", a, 0.55), small, b.fma(part, -2.0, 1.0)), x)
    small = b.fma(b.mul(a, square), b.polynomial(square, coefficients.TANH_F32), a)
    limited = b.smaller(10.0, a)
    shifted, _, r = _reduced(b, b.add(limited, limited))
    power = _power_of_two(b, b.sub(b.bitcast(shifted, "i32"), ROUNDER_BITS))
    t = b.fma(power, _expm1_rest(b, r), b.sub(power, 1.0))
    large = b.div(t, b.add(t, 2.0))
    return b.copysign(b.select(b.cmp("lt", a, 0.4), small, large), x)


def erf(b: Builder, x: Value) -> Value:
    """A polynomial below 0.92, 1 - e ** p(x) above."""
    a = b.fabs(x)
    square = b.mul(a, a)
    small = b.fma(a, b.polynomial(square, coefficients.ERF_F32), a)
    exponent = b.polynomial(b.sub(b.smaller(4.0, a), 2.0), coefficients.ERF_TAIL_F32)
    if b.target.exp2 is not None:
        rest = _exp_by_instruction(b, b.neg(exponent), b.target.exp2)
    else:
        rest = exp_of(b, b.neg(exponent), full_range=False)
    large = b.sub(1.0, rest)
    return b.copysign(b.select(b.cmp("lt", a, 0.92), small, large), x)


def ndtr(b: Builder, x: Value) -> Value:
    """The normal distribution function, to 2^-22 (2^-21.5 by an instruction for powers of two), and above -5.7 to 2^-9
    of itself: 2^-q(|x|), and 1 minus that for positive numbers. q is a polynomial that goes on growing beyond 5.7,
    where the tail vanishes: at 14 it is 413."""
    a = b.smaller(14.0, b.fabs(x))
    exponent = b.polynomial(a, [-each for each in coefficients.NDTR_F32])
    if b.target.exp2 is not None:
        tail = b.target.exp2(b, exponent)
    else:
        tail = _exp2_below(b, exponent)
    return b.select(b.cmp("lt", x, 0.0), tail, b.sub(1.0, tail))
