"""A square of vectors, transposed in registers."""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Value


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
