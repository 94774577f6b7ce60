"""Reductions with few results, cut in two stages so that threads share the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.addresses import ITEM_BYTES, flat_load, stride_of
from lampwork.loops.ir.definitions import name_of
from lampwork.loops.ir.expr import loads, move
from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Buffer, Definition, DType, Load, Map, Reduce
from lampwork.loops.ir.symbols import likely
from lampwork.loops.schedule.column_blocks import Tile, tile_of
from lampwork.records import record
from lampwork.standard import math

LONG_CHAIN = 64  # partial results that one thread of a GPU puts together, above which they are too many
SEVERAL = 4  # times as many pieces of a card, where no number near the best one divides what is reduced
_MANY = 4  # results for each value of one, above which the partial ones would be most of what is read


def split_reduction(group: Group, name: str, machine: Machine, hints: Mapping[str, int]) -> list[Group]:
    """The group itself, or, for work enough for four threads, two: partial results over chunks, then their combination.

    before: s = sum over i < 1000000 of x[i]
    after:  p[c] = sum over l < 15625 of x[15625*c + l];  s = sum over c < 64 of p[c]

    Maps over the points that are reduced go with the first, Maps of the results with the second:

    before: t[j, i] = f(x[j, i]); s[j] = sum over i of t[j, i]; u[j] = sum over i of t[j, i] * y[i]; v[j] = u[j] / s[j]
    after:  t, p[c, j], q[c, j];  s, u, v

    A symbolic axis becomes chunks as a whole, if another one is left: before sum over i < s0, j < s1; after p[i].

    Where the partial results of a column are many for a thread of a GPU, they are put together in two stages as well.
    """
    parts = _parts(group)
    if parts is None or not _is_worth_it(parts, machine, hints):
        return [group]
    results = _product(parts.reductions[0].axes, hints) or 1
    along = any(map(reads_along, parts.reductions))
    tile = None if along else _tile(parts, machine, hints)
    if tile is not None and tile.pieces == 1:
        return [group]
    enough = machine.pieces(results, along=along) if tile is None else tile.pieces
    # On a card pieces that are read once are as many as run at a time: more of them would begin when others end.
    least = tile is not None or (along and machine.processors > 0)
    stages = _in_two(group, parts, f"{name}_partial", enough, hints, least=least)
    if len(stages) == 1 and tile is None and least:
        stages = _in_two(group, parts, f"{name}_partial", SEVERAL * enough, hints)
    rest = _parts(stages[-1]) if len(stages) > 1 and machine.tile_side else None
    if rest is None or any(map(reads_along, rest.reductions)) or _tile(rest, machine, hints) is not None:
        return stages
    count = _product(rest.reductions[0].over, hints) or 1
    if count <= LONG_CHAIN:
        return stages
    return [stages[0], *_in_two(stages[-1], rest, f"{name}_sums", math.isqrt(count), hints)]


def _tile(parts: _Parts, machine: Machine, hints: Mapping[str, int]) -> Tile | None:
    """How blocks of threads of a card reduce the columns that lie side by side, if they do."""
    first = parts.reductions[0]
    columns, lines = _product(first.axes, hints), _product(first.over, hints)
    if not machine.processors or columns is None or lines is None or not reads_along(first, first.axes):
        return None
    size = max(ITEM_BYTES[load.dtype] for load in loads(*(each.value for each in parts.reductions)))
    return tile_of(columns, columns, lines, size, machine)


def _in_two(
    group: Group, parts: _Parts, partials: str, enough: int, hints: Mapping[str, int], *, least: bool = False
) -> list[Group]:
    """The stages of a group, by about `enough` chunks, or at `least` not many more; itself where there are no such."""
    axes, over = parts.reductions[0].axes, parts.reductions[0].over
    split = _chunks(over, enough, hints, least=least)
    if split is None:
        return [group]
    chunks, left, mapping = split
    first: list[Definition] = [
        replace(
            each,
            axes=(*chunks, *axes, *left),
            index=tuple(position.substitute(mapping) for position in each.index),
            value=move(each.value, mapping, {}),
        )
        for each in parts.points
    ]
    again: dict[str, Reduce] = {}
    for number, whole in enumerate(parts.reductions):
        value = move(whole.value, mapping, {})
        ordered = (*chunks, *_as_stored(whole))
        partial = _row_major_buffer(f"{partials}{number or ''}", value.dtype, ordered)
        index = tuple(Index.var(axis.name) for axis in ordered)
        first.append(Reduce(partial, (*chunks, *axes), left, index, whole.op, value, None))
        again[whole.out.name] = replace(whole, over=chunks, value=Load(partial, index))
    points = {each.out.name for each in parts.points}
    second = [again.get(name_of(each), each) for each in group.definitions if name_of(each) not in points]
    results = {name_of(each) for each in second}
    return [
        Group("rows", tuple(first), (*chunks, *axes), group.private & points),
        Group("rows", tuple(second), axes, group.private & results),
    ]


@record
class _Parts:
    """What a group computes at each of the points that it reduces, and its reductions, all over the same axes."""

    points: tuple[Map, ...]
    reductions: tuple[Reduce, ...]


def _parts(group: Group) -> _Parts | None:
    """None for a group that is not Maps, reductions of these at the same points, and Maps of the results."""
    points: list[Map] = []
    reductions: list[Reduce] = []
    results: list[Map] = []
    for each in group.definitions:
        if isinstance(each, Reduce):
            reductions.append(each)
        elif isinstance(each, Map):
            (points if len(each.axes) > len(group.rows) else results).append(each)
    if not reductions or any(each.op in ("argmax", "argmin") for each in reductions):
        return None
    axes, over = reductions[0].axes, set(reductions[0].over)
    if any(each.axes != axes or set(each.over) != over for each in reductions):
        return None
    if any(set(each.axes) != {*axes, *over} for each in points):
        return None
    at = {each.out.name: each.index for each in points}
    late = {each.out.name for each in (*reductions, *results)}
    for load in loads(*(each.value for each in (*points, *reductions))):
        if load.buffer.name in late or at.get(load.buffer.name, load.index) != load.index:
            return None
    ends = [each.finish for each in reductions if each.finish is not None]
    if any(load.buffer.name in at for load in loads(*ends, *(each.value for each in results))):
        return None
    return _Parts(tuple(points), tuple(reductions))


def _is_worth_it(parts: _Parts, machine: Machine, hints: Mapping[str, int]) -> bool:
    whole = parts.reductions[0]
    rows, size = _product(whole.axes, hints), _product(whole.over, hints)
    if rows is None or size is None or rows * size < 4 * machine.kernel_work or rows > _MANY * size:
        return False
    return rows < machine.few_items or not any(map(reads_along, parts.reductions))


def _product(axes: tuple[Axis, ...], hints: Mapping[str, int]) -> int | None:
    total = 1
    for axis in axes:
        size = likely(axis.extent, hints)
        if size is None:
            return None
        total *= size
    return total


def reads_along(whole: Reduce, axes: Sequence[Axis] = ()) -> bool:
    """Whether some load is contiguous along one of the axes, by default the reduced ones."""
    extents = {axis.name: axis.extent for axis in (*whole.axes, *whole.over)}
    offsets = [flat_load(load, extents).index[0] for load in loads(whole.value)]
    return any(stride_of(offset, axis.name) == 1 for offset in offsets for axis in axes or whole.over)


def _as_stored(whole: Reduce) -> list[Axis]:
    """The axes of the results, those that lie side by side in memory last."""
    place = flat_load(Load(whole.out, whole.index), {axis.name: axis.extent for axis in whole.axes}).index[0]
    steps = {axis: stride_of(place, axis.name) for axis in whole.axes}
    return sorted(whole.axes, key=lambda axis: -(steps[axis] or 0))


def _chunks(
    over: tuple[Axis, ...], enough: int, hints: Mapping[str, int], *, least: bool = False
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], dict[str, Index]] | None:
    """Leading reduced axes as `enough` chunks, the last of them split if it is long; None if that gives too few.
    `least`: rather somewhat fewer chunks than more of them."""
    chunks: list[Axis] = []
    count = 1
    rest = list(over)
    mapping: dict[str, Index] = {}
    while rest and count < enough:
        axis = rest[0]
        size = likely(axis.extent, hints)
        if size is None:
            return None
        wanted = -(-enough // count)
        if size <= 2 * wanted or not axis.extent.is_const:
            chunks.append(rest.pop(0))
            count *= size
            continue
        numbers = [
            *(range(wanted, wanted // 2, -1) if least else ()),
            *range(wanted, min(4 * wanted, size) + 1),
        ]
        pieces = next((n for n in numbers if size % n == 0), None)
        if pieces is None:
            break
        chunks.append(Axis(f"{axis.name}h", as_index(pieces)))
        rest[0] = Axis(f"{axis.name}l", as_index(size // pieces))
        mapping[axis.name] = Index.var(f"{axis.name}h") * (size // pieces) + Index.var(f"{axis.name}l")
        count *= pieces
        if least:
            break
    if count < (2 if least else 8) or not rest:
        return None
    return tuple(chunks), tuple(rest), mapping


def _row_major_buffer(name: str, dtype: DType, axes: tuple[Axis, ...]) -> Buffer:
    strides: list[Index] = []
    step = ONE
    for axis in reversed(axes):
        strides.append(step)
        step = step * axis.extent
    return Buffer(name, dtype, tuple(axis.extent for axis in axes), tuple(reversed(strides)))
