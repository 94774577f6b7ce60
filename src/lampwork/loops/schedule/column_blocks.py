"""Columns reduced by blocks of threads: of some columns, which fill lines of memory, many lines at a time.

before: parallel-vector j < 4096: reduce i < 4096: s = sum of x[i, j]; y[j] = s
after:  parallel blocks of 32 columns:
            vector p < 2048: reduce i < 64: x at line 64*i + p // 32, column p % 32; scratch[p]
            vector p < 512: reduce i < 4: scratch[512*i + p]; again[p]
            vector j < 32: reduce i < 16: s = sum of again[32*i + j]; y at column j
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lampwork.loops.ir.addresses import ITEM_BYTES
from lampwork.loops.ir.definitions import points
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.grid import ALIGNED, WARP
from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Buffer, Expr, Load, Local, Loop, Stmt
from lampwork.loops.schedule.emit_nest import emit_phase
from lampwork.loops.schedule.nest import Item, Nest, Phase
from lampwork.loops.schedule.row_loops import wrap_parallel
from lampwork.records import record

LEAST_BYTES = 64
"""Of a line of a block: what memory moves at a time."""
THREADS = 512  # of a block
FLAT_THREADS = 256  # of a multiprocessor, that read fast enough if each goes through a column alone
FEW_LINES = 16  # that a thread goes through alone in no time
MOST_LEFT = (
    32  # lines of scratch that the last threads put together: of more, all threads put some together before
)


@record
class Tile:
    """Blocks of so many columns side by side, and so many lines at a time; pieces: of the lines, with results of their
    own."""

    columns: int
    lines: int
    pieces: int


def tile_of(columns: int, beside: int, lines: int, size: int, machine: Machine) -> Tile | None:
    """How blocks of threads reduce columns of `lines` elements of `size` bytes, of which `beside` lie side by side;
    None where a thread for each column is as good, or lines cannot be cut.

    One block for each multiprocessor is enough, and then nothing is left to be put together. If there are fewer, the
    lines are cut into pieces, of two blocks for each, and a block takes as many columns as a warp reads at a time.
    """
    lanes = max(ALIGNED // size, 1)
    if lines < FEW_LINES or columns // lanes >= machine.processors * FLAT_THREADS:
        return None
    widest = min(beside & -beside, WARP * lanes)
    if widest * size < LEAST_BYTES // 2:
        return None
    width, pieces = widest, 1
    while width * size > LEAST_BYTES and not machine.fills(columns // width):
        width //= 2
    if not machine.fills(columns // width) and lines * columns >= machine.kernel_work * 4:
        width = widest
        pieces = max(2 * machine.processors // (columns // width), 1)
    return Tile(width, max(THREADS * lanes // width, 1), pieces)


def column_blocks(
    nest: Nest, vector: Axis, width: int | None = None
) -> tuple[list[Stmt], list[Buffer]] | None:
    """The loops of a nest whose one deep phase reduces columns side by side along `vector`, and their scratch. None
    where the nest is another or blocks are not worth it. width: how many columns a block has to take."""
    phase, *others = nest.phases
    if any(each.inner for each in others) or not phase.reduces:
        return None
    if any(item.position is not None for item in phase.items) or not phase.inner:
        return None
    columns, lines, beside = (points(axes).as_int() for axes in (nest.rows, phase.inner, [vector]))
    if columns is None or lines is None or beside is None or not nest.machine.processors:
        return None
    size = max((ITEM_BYTES[load.dtype] for load in loads(*(each.value for each in phase.items))), default=1)
    tile = tile_of(columns, beside, lines, size, nest.machine)
    if width is not None and beside % width == 0:
        tile = Tile(width, max(THREADS * max(ALIGNED // size, 1) // width, 1), 1)
    if tile is None:
        return None
    axis = max(phase.inner, key=lambda axis: axis.extent.as_int() or 0)
    length = axis.extent.as_int() or 1
    side = min(length & -length, tile.lines)
    return _blocks(nest, phase, vector, tile.columns, axis, side) if side > 1 else None


def _blocks(
    nest: Nest, phase: Phase, vector: Axis, width: int, axis: Axis, side: int
) -> tuple[list[Stmt], list[Buffer]]:
    """`width` columns a block, and `side` lines of `axis` at a time."""
    blocks = Axis(f"{vector.name}b", vector.extent // width)
    turns = Axis(f"{axis.name}t", axis.extent // side)
    block, column = (
        Axis(f"{vector.name}p", as_index(width * side)),
        Axis(f"{vector.name}v", as_index(width)),
    )
    extents = {**nest.extents(), **{each.name: each.extent for each in (blocks, turns, block, column)}}
    first = Index.var(blocks.name) * width
    point = Index.var(block.name)
    inside = {
        vector.name: first + point % width,
        axis.name: Index.var(turns.name) * side + point // width,
    }
    reductions = [item for item in phase.items if item.op is not None]
    rooms = [
        Buffer(f"block{number}", item.value.dtype, (block.extent,), (ONE,))
        for number, item in enumerate(reductions)
    ]
    deep: list[Item] = [replace(item) for item in phase.items if item.op is None]
    for item, room in zip(reductions, rooms, strict=True):
        deep.append(_part(item, "p", room, item.value))
    between, left, last = _between(reductions, rooms, vector, axis, width, side)
    line = Axis(f"{axis.name}s", as_index(left))
    place = Index.var(line.name) * width + Index.var(column.name)
    combined = [
        replace(item, value=Load(room, (place,))) for item, room in zip(reductions, last, strict=True)
    ]
    for item in deep:
        item.substitute(inside, extents)
        item.target = Load(item.buffer, (point,)) if item.op is not None else item.target
    outside = {vector.name: first + Index.var(column.name)}
    later = [each.items for each in nest.phases[1:]]
    for item in (*combined, *(item for items in later for item in items)):
        item.substitute(outside, extents)
    own = emit_phase(Phase([turns if each is axis else each for each in phase.inner], deep), None)
    ends = emit_phase(Phase([line], combined), None)
    for items in later:
        ends += emit_phase(Phase([], items), None)
    rest = [each for each in nest.rows if each is not vector]
    loops: list[Stmt] = [Loop(block, "vector", tuple(own)), *between, Loop(column, "vector", tuple(ends))]
    scratch = [*rooms, *last] if between else rooms
    return wrap_parallel([*rest, blocks], loops, nest.machine, nest.hints), scratch


def _part(item: Item, suffix: str, room: Buffer, value: Expr) -> Item:
    """What a thread reduces of an item, for a place in scratch."""
    acc = f"{item.acc}{suffix}"
    return Item(f"{item.name}{suffix}", room, value, None, item.op, acc, Local(acc, value.dtype))


def _between(
    reductions: Sequence[Item], rooms: list[Buffer], vector: Axis, axis: Axis, width: int, side: int
) -> tuple[list[Stmt], int, list[Buffer]]:
    """The loop that puts lines of scratch together until few are left, if they are many; how many there are then, and
    where."""
    if side <= MOST_LEFT:
        return [], side, rooms
    left = FEW_LINES
    point, turn = (
        Axis(f"{vector.name}q", as_index(left * width)),
        Axis(f"{axis.name}u", as_index(side // left)),
    )
    place = Index.var(turn.name) * (left * width) + Index.var(point.name)
    again = [replace(room, name=f"again{n}", shape=(point.extent,)) for n, room in enumerate(rooms)]
    items = [
        _part(item, "q", to, Load(room, (place,)))
        for item, room, to in zip(reductions, rooms, again, strict=True)
    ]
    for item in items:
        item.target = Load(item.buffer, (Index.var(point.name),))
    return [Loop(point, "vector", tuple(emit_phase(Phase([turn], items), None)))], left, again
