"""Numbers as unevaluated sums of two doubles, for results that one double would round too early (Dekker; Ogita, Rump
and Oishi). They need fused multiplication: the rounding error of a product is then one instruction.

The second number of a pair is at most a few units in the last place of the first, and so is what the functions here
leave out of the second.
"""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Operand, Value

Pair = tuple[Value, Value]


def add(b: Builder, x: Operand, y: Operand) -> Pair:
    """x + y, exactly."""
    total = b.add(x, y)
    part = b.sub(total, x)
    return total, b.add(b.sub(x, b.sub(total, part)), b.sub(y, part))


def add_smaller(b: Builder, x: Operand, y: Operand) -> Pair:
    """x + y, exactly, where y is not larger in magnitude than x, or x is 0."""
    total = b.add(x, y)
    return total, b.sub(y, b.sub(total, x))


def multiply(b: Builder, x: Operand, y: Operand) -> Pair:
    """x * y, exactly, unless what is lost is too small for a double."""
    product = b.mul(x, y)
    return product, b.fma(x, y, b.neg(product))


def product(b: Builder, x: tuple[Operand, Operand], y: tuple[Operand, Operand]) -> Pair:
    """x * y of pairs."""
    high, low = multiply(b, x[0], y[0])
    return high, b.fma(x[0], y[1], b.fma(x[1], y[0], low))


def quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    """x / y of pairs, where 1 / y is a normal number."""
    inverse = b.div(1.0, y[0])
    ratio = b.mul(x[0], inverse)
    rest = b.add(b.fma(b.neg(ratio), y[0], x[0]), b.fma(b.neg(ratio), y[1], x[1]))
    return ratio, b.mul(rest, inverse)


def root(b: Builder, x: Pair) -> Pair:
    """The square root of a pair that is 0 or at least 2^-900."""
    high = b.sqrt(x[0])
    rest = b.add(b.fma(b.neg(high), high, x[0]), x[1])
    # What is added makes 0 / 0 a 0, and is lost beside any other number.
    return high, b.div(rest, b.add(b.add(high, high), 2.0**-1000))
