"""sigmoid and tanh as fractions, for code in which several of them meet in one division.

    sigmoid(x) = 1 / denominator        tanh(x) = numerator / denominator

A product of a sigmoid and a tanh is then one division instead of two, and the sum that each fraction ends in costs less
than the fraction itself: a cell of an lstm has 3 divisions instead of 5. Errors are below 5 ulp, of sigmoid and tanh
between -20 and 20 below 3 (tests/unit/codegen/test_vecmath_fractions.py).
"""

from __future__ import annotations

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.emit_ops import emit_op
from lampwork.codegen.llvm.vecmath_single import LN2_HIGH, LN2_LOW, LOG2_E, ROUNDER

_LN2 = 0.6931471805599453
_ONE_BITS = 0x3F800000
_FINITE = 88.0
"""e ** x of float32 is finite up to here."""


def sigmoid_denominator(b: Builder, x: Value) -> Value:
    """1 + e ** -x: infinite where sigmoid(x) is 0, so that 0 times infinity is NaN as a fraction, too."""
    if x.dtype != "f32":
        return b.add(emit_op(b, "exp", (b.neg(x),), x.dtype), 1.0)
    if b.target.scale is not None:
        n, rest = _reduced(b, b.neg(b.larger(-200.0, b.smaller(200.0, x))))
        scaled = b.target.scale(b, b.add(rest, 1.0), b.sub(n, ROUNDER))
        if scaled is not None:
            return b.add(scaled, 1.0)
    n, rest = _reduced(b, b.neg(b.larger(-_FINITE, b.smaller(_FINITE - 1.0, x))))
    power = _power(b, n)
    finite = b.add(b.fma(power, rest, power), 1.0)
    return b.select(b.cmp("lt", x, -_FINITE), float("inf"), finite)


def tanh_fraction(b: Builder, x: Value) -> tuple[Value, Value]:
    """e ** 2x - 1 over e ** 2x + 1. The former is computed without cancellation: near 0 it is as exact as tanh."""
    if x.dtype != "f32":
        return emit_op(b, "tanh", (x,), x.dtype), b.const(1.0, x.dtype)
    limited = b.larger(-10.0, b.smaller(10.0, x))
    n, rest = _reduced(b, b.add(limited, limited))
    power = _power(b, n)
    numerator = b.fma(power, rest, b.sub(power, 1.0))
    return numerator, b.add(numerator, 2.0)


def _reduced(b: Builder, x: Value) -> tuple[Value, Value]:
    """(n + ROUNDER, rest) with e ** x = 2 ** n * (1 + rest)."""
    shifted = b.fma(x, LOG2_E, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    if b.target.has_fma:
        r = b.fma(n, -_LN2, x)
    else:
        # A product that is rounded has to be exact.
        r = b.fma(n, -LN2_LOW, b.fma(n, -LN2_HIGH, x))
    return shifted, b.mul(r, b.fma(r, b.polynomial(r, coefficients.EXP_F32), 1.0))


def _power(b: Builder, shifted: Value) -> Value:
    """2 ** n of n + ROUNDER, whose low bits are n; -127 < n < 128."""
    return b.bitcast(b.add(b.shl(b.bitcast(shifted, "i32"), 23), _ONE_BITS), "f32")
