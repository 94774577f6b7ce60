"""Transposed copies through a tile of scratch, where threads share it: reads and writes both go along memory.

before: for v, s: y[v + 64*s] = x[s + 512*v]
after:  parallel blocks of v and s:
            vector j < 1024: tile[33*(j // 32) + j % 32] = x at v = j // 32, s = j % 32
            vector j < 1024: y at v = j % 32, s = j // 32 = tile[33*(j % 32) + j // 32]
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.loops.ir.addresses import ITEM_BYTES, stride_of
from lampwork.loops.ir.expr import move
from lampwork.loops.ir.grid import BANK
from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.nodes import Axis, Buffer, Expr, Let, Load, Local, Loop, Stmt, Store
from lampwork.loops.ir.traverse import rewrite, walk_once
from lampwork.loops.schedule.emit_nest import emit_phase
from lampwork.loops.schedule.nest import Nest, Phase
from lampwork.loops.schedule.row_loops import wrap_parallel

LEAST = 8  # elements of a side, below which lines of memory are not filled
MOST = 4  # tiles of a kernel


def through_tiles(
    nest: Nest, phase: Phase, vector: Axis, strided: Axis, rest: Sequence[Axis]
) -> tuple[list[Stmt], list[Buffer]] | None:
    """The loops of a pointwise phase that writes along `vector` and reads something along `strided`, and its scratch.
    None where the machine has no use for tiles, or they would not divide the axes."""
    loads = _staged(phase, vector, strided)
    if not 0 < len(loads) <= MOST:
        return None
    side = nest.machine.tile_side * (2 if all(ITEM_BYTES[load.dtype] <= 2 for load in loads) else 1)
    columns, lines = _side(vector, side), _side(strided, side)
    if min(columns, lines) < LEAST:
        return None
    blocks = Axis(f"{vector.name}b", as_index((vector.extent.as_int() or 0) // columns))
    strips = Axis(f"{strided.name}b", as_index((strided.extent.as_int() or 0) // lines))
    points = as_index(columns * lines)
    reading, writing = Axis(f"{strided.name}t", points), Axis(f"{vector.name}t", points)
    extents = {**nest.extents(), **{axis.name: axis.extent for axis in (blocks, strips, reading, writing)}}

    pad = max([1, *(BANK // ITEM_BYTES[load.dtype] for load in loads)])

    def placed(column: Index, line: Index) -> tuple[dict[str, Index], Index]:
        """Where a point of the tile lies in the tensors, and in the tile, whose lines are a bank longer than they need
        be: neighbours in both directions lie in different banks."""
        mapping = {
            vector.name: Index.var(blocks.name) * columns + column,
            strided.name: Index.var(strips.name) * lines + line,
        }
        return mapping, column * (lines + pad) + line

    j = Index.var(reading.name)
    mapping, place = placed(j // lines, j % lines)
    tiles = [
        Buffer(f"tile{number}", load.dtype, (as_index(columns * (lines + pad)),), (ONE,))
        for number, load in enumerate(loads)
    ]
    filled: list[Stmt] = []
    for number, (load, tile) in enumerate(zip(loads, tiles, strict=True)):
        name = f"read{number}"
        filled += [
            Let(name, move(load, mapping, extents)),
            Store(tile, (place,), Local(name, load.dtype)),
        ]
    j = Index.var(writing.name)
    mapping, place = placed(j % columns, j // columns)
    kept: dict[Expr, Load] = {
        move(load, mapping, extents): Load(tile, (place,)) for load, tile in zip(loads, tiles, strict=True)
    }
    for item in phase.items:
        item.substitute(mapping, extents)
        item.value = rewrite(item.value, {Load: lambda load: kept.get(load, load)})
    stored = emit_phase(Phase([], phase.items), None)
    loops: list[Stmt] = [Loop(reading, "vector", tuple(filled)), Loop(writing, "vector", tuple(stored))]
    return wrap_parallel([*rest, strips, blocks], loops, nest.machine, nest.hints), tiles


def _side(axis: Axis, most: int) -> int:
    """The largest power of two that divides an axis, up to `most`; 0 for one of unknown length."""
    size = axis.extent.as_int()
    return 0 if size is None or most == 0 else min(size & -size, most)


def _staged(phase: Phase, vector: Axis, strided: Axis) -> list[Load]:
    """The loads that are contiguous along `strided` and far apart along `vector`."""
    found: dict[Load, None] = {}
    for part in walk_once(*(item.value for item in phase.items), data=False):
        if not isinstance(part, Load):
            continue
        index = part.index[0]
        if stride_of(index, strided.name) == 1 and stride_of(index, vector.name) not in (0, 1, None):
            found[part] = None
    return list(found)
