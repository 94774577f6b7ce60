"""What a unit with tile registers can do at most: its products in chains of four sums, without memory."""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.templates.code import function
from lampwork.codegen.target import Target, TileUnit

_ROWS, _LINE, _SUMS = 16, 64, 4


def tile_loop(target: Target, unit: TileUnit) -> tuple[str, int]:
    """LLVM IR of `dot` (of the ABI of `Kernel`, reading 64 bytes at its first buffer), and the operations of a turn of
    its loop."""
    b = Builder(Module(), target)
    pointer = b.emit("load ptr, ptr %buffers, align 8", "i64", 1, pure=False).text
    tiles = unit.code(b)
    tiles.configure([(_ROWS, _LINE)] * 8)
    left, right = _SUMS, _SUMS + 1
    for tile in (left, right):
        tiles.load(tile, pointer, 0)
    with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1):
        for sums in range(_SUMS):
            tiles.dot(sums, left, right)
    tiles.release()
    return function(b, "dot"), 2 * _SUMS * _ROWS * _ROWS * _ROWS * unit.steps
