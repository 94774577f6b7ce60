"""exp, sigmoid, tanh and erf of float32, in float32: what models spend their time on.

Each is a reduction to a short interval and a polynomial (coefficients.py), without branches. Errors, over all floats:
see tests/unit/codegen/test_codegen_vecmath.py, which holds them to 2 ulp and measures about 1.
"""

from __future__ import annotations

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm.builder import Builder, Value

LOG2_E = 1.4426950408889634
# ln 2 in two parts; the first has so few bits that n * LN2_HIGH is exact.
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.42860682030941723212e-6
# Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
ROUNDER = 12582912.0
ROUNDER_BITS = 0x4B400000


def exp(b: Builder, x: Value) -> Value:
    """e ** x: infinity above 88.7, subnormal and then 0 below -87.3."""
    # Beyond these the result is infinite or 0; the order of operands lets NaN pass.
    clamped = b.larger(-105.0, b.smaller(90.0, x))
    return _exp_of(b, clamped, full_range=True)


def _exp_of(b: Builder, x: Value, *, full_range: bool, careful: bool = False) -> Value:
    """exp(x) for -105 <= x <= 90; without `full_range` the result must be a normal number. `careful` spends three
    instructions on a quarter of an ulp."""
    shifted = b.fma(x, LOG2_E, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    r = b.fma(n, -LN2_HIGH, x)
    r = b.fma(n, -LN2_LOW, r)
    q = b.horner(r, coefficients.EXP_F32)
    if careful:
        # 1 + r as a rounded sum and what the rounding left over.
        one = b.add(r, 1.0)
        p = b.add(one, b.fma(b.mul(r, r), q, b.sub(r, b.sub(one, 1.0))))
    else:
        p = b.add(b.fma(b.mul(r, r), q, r), 1.0)
    if b.target.scale is not None and (scaled := b.target.scale(b, p, n)) is not None:
        return scaled
    power = b.sub(b.bitcast(shifted, "i32"), ROUNDER_BITS)
    if not full_range:
        return b.mul(p, _power_of_two(b, power))
    # In two steps, since 2^n itself may be too large or too small for a float.
    half = b.ashr(power, 1)
    return b.mul(b.mul(p, _power_of_two(b, half)), _power_of_two(b, b.sub(power, half)))


def _power_of_two(b: Builder, n: Value) -> Value:
    return b.bitcast(b.shl(b.add(n, 127), 23), "f32")


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e ** -x), as e / (1 + e) for negative x: so that it does not fall to 0 before it must."""
    e = _exp_of(b, b.larger(-105.0, b.neg(b.fabs(x))), full_range=True, careful=True)
    numerator = b.select(b.cmp("ge", x, 0.0), 1.0, e)
    return b.div(numerator, b.add(e, 1.0))


def tanh(b: Builder, x: Value) -> Value:
    """A polynomial below 0.85, 1 - 2 / (e ** 2x + 1) above."""
    a = b.fabs(x)
    square = b.mul(a, a)
    small = b.fma(b.mul(a, square), b.horner(square, coefficients.TANH_F32), a)
    limited = b.smaller(10.0, a)
    e = _exp_of(b, b.add(limited, limited), full_range=False)
    large = b.sub(1.0, b.div(2.0, b.add(e, 1.0)))
    return b.copysign(b.select(b.cmp("lt", a, 0.85), small, large), x)


def erf(b: Builder, x: Value) -> Value:
    """A polynomial below 0.92, 1 - e ** p(x) above."""
    a = b.fabs(x)
    square = b.mul(a, a)
    small = b.fma(a, b.horner(square, coefficients.ERF_F32), a)
    exponent = b.horner(b.sub(b.smaller(4.0, a), 2.0), coefficients.ERF_TAIL_F32)
    large = b.sub(1.0, _exp_of(b, b.neg(exponent), full_range=False))
    return b.copysign(b.select(b.cmp("lt", a, 0.92), small, large), x)
