"""sin and cos of float32 in float32, for targets with fused multiplication and angles up to `LIMIT`.

x = n pi/2 + r with |r| <= pi/4: pi/2 is subtracted in three parts. The first has 23 bits behind the point, so that
x - n * first is exact, and the second and third leave an error of 2^-50 n: the smallest r is about 2^-30.
"""

from __future__ import annotations

from lampwork.codegen.llvm import coefficients
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.vecmath_single import ROUNDER
from lampwork.standard import math

LIMIT = 2.0**17
HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)


def _reduced(b: Builder, x: Value) -> tuple[Value, Value]:
    """The integer whose low bits are n's, and r."""
    shifted = b.fma(x, 2 / math.pi, ROUNDER)
    n = b.sub(shifted, ROUNDER)
    r = x
    for part in HALF_PI:
        r = b.fma(n, -part, r)
    return b.bitcast(shifted, "i32"), r


def _sine(b: Builder, r: Value, square: Value) -> Value:
    return b.fma(b.mul(r, square), b.polynomial(square, coefficients.SIN_F32), r)


def _cosine(b: Builder, square: Value) -> Value:
    rest = b.fma(b.polynomial(square, coefficients.COS_F32), square, -0.5)
    return b.fma(rest, square, 1.0)


def _wave(b: Builder, x: Value, quarter: int) -> Value:
    """sin(x + quarter * pi/2)."""
    bits, r = _reduced(b, x)
    turned = b.add(bits, quarter) if quarter else bits
    square = b.mul(r, r)
    value = b.select(b.cmp("ne", b.and_(turned, 1), 0), _cosine(b, square), _sine(b, r, square))
    return b.bitcast(b.xor(b.bitcast(value, "i32"), b.shl(b.and_(turned, 2), 30)), "f32")


def sin(b: Builder, x: Value) -> Value:
    # The comparison keeps -0.0.
    return b.select(b.cmp("lt", b.fabs(x), 2.0**-12), x, _wave(b, x, 0))


def cos(b: Builder, x: Value) -> Value:
    return _wave(b, x, 1)
