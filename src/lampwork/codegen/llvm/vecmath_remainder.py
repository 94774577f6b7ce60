"""The remainder of a division of floats, exact, as C's fmod has it.

LLVM's `frem` calls the C library for each lane. Here the quotient is rounded to an integer, which is the right one or
one too large, and the remainder is a fused product and difference. Quotients that are no exact integers in the type
take a branch to the C library; on targets without one they are divided in steps, lane by lane.
"""

from __future__ import annotations

from lampwork.codegen.llvm.branches import lane_by_lane, unless_any
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.vecmath import libm


def fmod(b: Builder, x: Value, y: Value) -> Value:
    """x - y * trunc(x / y), exactly, with the sign of x."""
    lanes = max(x.lanes, y.lanes)
    x, y = b.widen(x, lanes), b.widen(y, lanes)
    if x.dtype == "f64" and not b.target.has_fma:
        return _far(b, x, y)
    dividend, divisor = b.fabs(x), b.fabs(y)
    quotient = b.intrinsic("trunc", b.div(dividend, divisor))
    rest = _rest(b, dividend, quotient, divisor)
    # Both are multiples of the divisor's last place, so that this sum is exact too.
    rest = b.select(b.cmp("lt", rest, 0.0), b.add(rest, divisor), rest)
    # Also where the divisor is infinite.
    rest = b.select(b.cmp("lt", dividend, divisor), dividend, rest)
    large = b.cmp("ge", quotient, 2.0**53 if x.dtype == "f64" else 2.0**24)
    return unless_any(b, large, b.copysign(rest, x), lambda: _far(b, x, y))


def _rest(b: Builder, dividend: Value, quotient: Value, divisor: Value) -> Value:
    """dividend - quotient * divisor, exactly."""
    if b.target.has_fma:
        return b.fma(b.neg(quotient), divisor, dividend)
    wide = [b.convert("fpext", value, "f64") for value in (dividend, quotient, divisor)]
    return b.convert("fptrunc", b.sub(wide[0], b.mul(wide[1], wide[2])), "f32")


def _far(b: Builder, x: Value, y: Value) -> Value:
    """fmod where the quotient may be of any size."""
    if b.target.has_libm or (x.dtype == "f64" and not b.target.has_fma):
        return libm(b, "fmod", x, y)
    return b.copysign(lane_by_lane(b, _stepwise, b.fabs(x), b.fabs(y))[0], x)


def _stepwise(b: Builder, x: Value, y: Value) -> tuple[Value]:
    """x modulo y, both not negative: less multiples of y * 2^s, for smaller and smaller s."""
    single = x.dtype == "f32"
    if single:
        x, y = b.convert("fpext", x, "f64"), b.convert("fpext", y, "f64")
    # Bits of each quotient. Without fused multiplication it times the 24 bits of a float has to be a double.
    step = 50 if b.target.has_fma else 28
    subnormal = b.cmp("lt", y, 2.0**-1022)
    divisor = b.select(subnormal, b.mul(y, 2.0**54), y)
    exponent = b.sub(_exponent(b, divisor), b.select(subnormal, b.const(54, "i64"), 0))
    distance = b.sub(_exponent(b, x), exponent)
    distance = b.select(b.cmp("lt", distance, 0), 0, distance)
    turns = b.add(b.div(distance, step), 1)
    with b.loop(b.const(0, "i64"), turns, 1, [x], runs=True) as loop:
        shift = b.sub(distance, b.mul(b.add(loop.index, 1), step))
        shift = b.select(b.cmp("lt", shift, 0), 0, shift)
        shift = b.sub(shift, b.select(subnormal, b.const(54, "i64"), 0))
        # In two factors, since 2^shift may be too large for one.
        half = b.ashr(shift, 1)
        part = b.mul(b.mul(divisor, _power(b, half)), _power(b, b.sub(shift, half)))
        (rest,) = loop.carried
        rest = b.fma(b.neg(b.intrinsic("trunc", b.div(rest, part))), part, rest)
        loop.next = [b.select(b.cmp("lt", rest, 0.0), b.add(rest, part), rest)]
    rest = b.select(b.cmp("lt", x, y), x, loop.results[0])
    valid = b.and_(b.cmp("lt", x, float("inf")), b.cmp("gt", y, 0.0))
    rest = b.select(valid, rest, float("nan"))
    return (b.convert("fptrunc", rest, "f32") if single else rest,)


def _exponent(b: Builder, x: Value) -> Value:
    """The biased exponent of a double that is not negative."""
    return b.lshr(b.bitcast(x, "i64"), 52)


def _power(b: Builder, n: Value) -> Value:
    return b.bitcast(b.shl(b.add(n, 1023), 52), "f64")
