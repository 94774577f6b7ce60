"""AArch64: NEON, which every 64-bit Arm processor has, with the dot products of Armv8.2 or without.

Tiles are those that the registers hold. None of the numbers is measured: no such processor is at hand.
"""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.generator import llvm_generator
from lampwork.codegen.target import Dot, Target, TileShape
from lampwork.loops.ir.nodes import DType

TRIPLE = "aarch64-unknown-linux-gnu"
_PRODUCTS: frozenset[DType] = frozenset(("f32", "f64", "bf16", "f16", "i8"))


def describe(name: str, *, dot_products: bool = False) -> Target:
    """A machine with NEON, and the instructions for dot products of int8."""
    return Target(
        name,
        "generic",
        llvm_generator,
        features="+dotprod" if dot_products else "",
        triple=TRIPLE,
        vector_bytes=16,
        registers=32,
        has_fma=True,
        has_f16c=True,
        has_maximum=True,
        products=_PRODUCTS,
        dots=(_INT8_QUADS if dot_products else _INT8_PAIRS,),
        tiles=(TileShape(3, 8), TileShape(4, 6, 1.01), TileShape(2, 12, 1.04), TileShape(1, 16, 1.2)),
        turned_tiles=(TileShape(2, 8), TileShape(3, 8), TileShape(1, 8)),
    )


def _sdot(b: Builder, sums: Value, left: Value, right: Value) -> Value:
    """sums + left * right, where a lane of left and right holds four int8. Sums wrap."""
    bytes_ = f"<{4 * sums.lanes} x i8>"
    a, c = (b.emit(f"bitcast {x.type} {x.text} to {bytes_}", "i8", 4 * x.lanes) for x in (left, right))
    return b.emit(
        f"call {sums.type} @llvm.aarch64.neon.sdot.v{sums.lanes}i32.v{4 * sums.lanes}i8"
        f"({sums.type} {sums.text}, {bytes_} {a.text}, {bytes_} {c.text})",
        "i32",
        sums.lanes,
    )


def _pairs(b: Builder, sums: Value, left: Value, right: Value) -> Value:
    """sums + left * right, where a lane holds two int16, the value of an int8 each: no product of them overflows."""
    low = b.mul(b.ashr(b.shl(left, 16), 16), b.ashr(b.shl(right, 16), 16))
    high = b.mul(b.ashr(left, 16), b.ashr(right, 16))
    return b.add(b.add(sums, low), high)


_INT8_PAIRS = Dot("i8", 2, _pairs, factor="i16")
_INT8_QUADS = Dot("i8", 4, _sdot)
