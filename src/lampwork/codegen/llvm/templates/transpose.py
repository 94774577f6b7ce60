"""A square of vectors, transposed in registers; and rows of it that are cut off, from and to memory."""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.templates.ints import place
from lampwork.codegen.llvm.templates.microkernel import Tile, load_vector, store_vector
from lampwork.codegen.llvm.types import mangled


def transpose(b: Builder, rows: list[Value]) -> list[Value]:
    """A square of vectors transposed: log2(lanes) stages of interleaving row i with row i + lanes / 2."""
    lanes = len(rows)
    low = ", ".join(f"i32 {i // 2 + (i % 2) * lanes}" for i in range(lanes))
    high = ", ".join(f"i32 {lanes // 2 + i // 2 + (i % 2) * lanes}" for i in range(lanes))
    type_ = rows[0].type
    stages = lanes.bit_length() - 1
    for _ in range(stages):
        following: list[Value] = []
        for i in range(lanes // 2):
            pair = f"{type_} {rows[i].text}, {type_} {rows[i + lanes // 2].text}"
            for order in (low, high):
                following.append(
                    b.emit(f"shufflevector {pair}, <{lanes} x i32> <{order}>", rows[0].dtype, lanes)
                )
        rows = following
    return rows


def load_first(b: Builder, tile: Tile, pointer: str, count: int) -> Value:
    """A vector whose first `count` elements come from memory, the others being 0."""
    if count == tile.lanes:
        return load_vector(b, tile.dtype, tile.lanes, pointer)
    mask = b.first_lanes(b.const(count, "i64"), tile.lanes)
    return b.emit(
        f"call {tile.vector} @llvm.masked.load.{mangled(tile.element, tile.lanes)}.p0(ptr {pointer}, "
        f"i32 {tile.size}, {b.typed(mask)}, {tile.vector} zeroinitializer)",
        tile.dtype,
        tile.lanes,
        pure=False,
    )


def store_first(b: Builder, tile: Tile, value: Value, pointer: str, count: int) -> None:
    """Store the first `count` elements of a vector, in pieces, without a mask."""
    first = 0
    for lanes in (1 << bit for bit in reversed(range(count.bit_length()))):
        if not count & lanes:
            continue
        order = ", ".join(f"i32 {first + lane}" for lane in range(lanes))
        text = f"shufflevector {b.typed(value)}, {value.type} poison, <{lanes} x i32> <{order}>"
        to = place(b, pointer, first, tile.dtype)
        if lanes == 1:
            piece = b.emit(f"extractelement {b.typed(value)}, i64 {first}", value.dtype, 1)
        else:
            piece = value if lanes == tile.lanes else b.emit(text, value.dtype, lanes)
        store_vector(b, piece, to)
        first += lanes
