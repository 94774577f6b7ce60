"""Division of signed integers. Vectors are divided in float64; where a lane holds a number beyond 2^51, lane by lane,
which is what LLVM makes of `sdiv`.

A quotient of whole numbers below 2^52 that is not whole is at least 1 / divisor away from the next one, which is more
than half the distance of doubles there: it is never rounded to a whole number, so rounding it afterwards is exact.
"""

from __future__ import annotations

from typing import Literal

from lampwork.codegen.llvm.branches import unless_any
from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.types import BITS

Rounding = Literal["trunc", "floor"]
ROUNDER = 6755399441055744.0  # 1.5 * 2^52: a whole number below 2^51 added to it stands in its low bits
ROUNDER_BITS = 0x4338000000000000


def divide(b: Builder, x: Value, y: Value, rounding: Rounding) -> Value:
    """x / y, rounded; it never traps: the smallest number by -1 gives itself, a number by 0 any number."""
    lanes = max(x.lanes, y.lanes)
    if y.const or lanes == 1:
        return _by_lanes(b, x, y, rounding)
    x, y = b.widen(x, lanes), b.widen(y, lanes)
    if BITS[x.dtype] < 64:
        ratio = b.div(b.convert("sitofp", x, "f64"), b.convert("sitofp", _safe(b, y), "f64"))
        quotient = b.convert("fptosi", b.intrinsic(rounding, ratio), x.dtype)
        return b.select(b.cmp("eq", y, -1), b.sub(0, x), quotient)
    ratio = b.div(_as_double(b, x), _as_double(b, _safe(b, y)))
    quotient = b.sub(b.bitcast(b.add(b.intrinsic(rounding, ratio), ROUNDER), "i64"), ROUNDER_BITS)
    quotient = b.select(b.cmp("eq", y, -1), b.sub(0, x), quotient)
    beyond = b.lshr(b.or_(b.add(x, 1 << 51), b.add(y, 1 << 51)), 52)
    return unless_any(b, b.cmp("ne", beyond, 0), quotient, lambda: _by_lanes(b, x, y, rounding))


def remainder(b: Builder, x: Value, y: Value, rounding: Rounding) -> Value:
    """x - y * (x / y, rounded): with the sign of x for "trunc", of y for "floor". It never traps."""
    if not y.const and max(x.lanes, y.lanes) > 1:
        return b.sub(x, b.mul(divide(b, x, y, rounding), y))
    rest = b.rem(x, y if y.const else _safe(b, y))
    if rounding == "trunc":
        return rest
    return b.select(_is_above(b, rest, y), b.add(rest, y), rest)


def _by_lanes(b: Builder, x: Value, y: Value, rounding: Rounding) -> Value:
    if y.const:
        quotient = b.div(x, y)
    else:
        quotient = b.select(b.cmp("eq", y, -1), b.sub(0, x), b.div(x, _safe(b, y)))
    if rounding == "trunc":
        return quotient
    above = _is_above(b, b.sub(x, b.mul(quotient, y)), y)
    return b.select(above, b.sub(quotient, 1), quotient)


def _is_above(b: Builder, rest: Value, y: Value) -> Value:
    """Whether the truncated quotient that leaves `rest` is one above the floor."""
    return b.and_(b.cmp("ne", rest, 0), b.xor(b.cmp("lt", y, 0), b.cmp("lt", rest, 0)))


def _safe(b: Builder, y: Value) -> Value:
    # Lanes past the end of a loop hold zeros, and a division in one lane traps for all.
    return b.select(b.or_(b.cmp("eq", y, 0), b.cmp("eq", y, -1)), 1, y)


def _as_double(b: Builder, x: Value) -> Value:
    """x within 2^51 as a double: targets below AVX-512 have no instruction for it."""
    return b.sub(b.bitcast(b.add(x, ROUNDER_BITS), "f64"), ROUNDER)
