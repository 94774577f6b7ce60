"""The remainder of a division of floats, exact, as C's fmod has it.

LLVM's `frem` calls the C library for each lane. Here the quotient is rounded to an integer, which is the right one or
one too large, and the remainder is a fused product and difference. Quotients that are no exact integers in the type
take a branch to the C library.
"""

from __future__ import annotations

from lampwork.codegen.llvm.branches import unless_any
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.vecmath import libm


def fmod(b: Builder, x: Value, y: Value) -> Value:
    """x - y * trunc(x / y), exactly, with the sign of x."""
    lanes = max(x.lanes, y.lanes)
    x, y = b.widen(x, lanes), b.widen(y, lanes)
    if x.dtype == "f64" and not b.target.has_fma:
        return libm(b, "fmod", x, y)
    dividend, divisor = b.fabs(x), b.fabs(y)
    quotient = b.intrinsic("trunc", b.div(dividend, divisor))
    rest = _rest(b, dividend, quotient, divisor)
    # Both are multiples of the divisor's last place, so that this sum is exact too.
    rest = b.select(b.cmp("lt", rest, 0.0), b.add(rest, divisor), rest)
    # Also where the divisor is infinite.
    rest = b.select(b.cmp("lt", dividend, divisor), dividend, rest)
    large = b.cmp("ge", quotient, 2.0**53 if x.dtype == "f64" else 2.0**24)
    return unless_any(b, large, b.copysign(rest, x), lambda: libm(b, "fmod", x, y))


def _rest(b: Builder, dividend: Value, quotient: Value, divisor: Value) -> Value:
    """dividend - quotient * divisor, exactly."""
    if b.target.has_fma:
        return b.fma(b.neg(quotient), divisor, dividend)
    wide = [b.convert("fpext", value, "f64") for value in (dividend, quotient, divisor)]
    return b.convert("fptrunc", b.sub(wide[0], b.mul(wide[1], wide[2])), "f32")
