"""Reductions with few results, cut in two stages so that threads share the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.addresses import flat_load, stride_of
from lampwork.loops.ir.expr import loads, move
from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Buffer, DType, Load, Reduce
from lampwork.loops.ir.symbols import likely

_DEEP = 16  # values a result, for each result, above which the results alone are too few to share


def split_reduction(group: Group, name: str, machine: Machine, hints: Mapping[str, int]) -> list[Group]:
    """The group itself, or, for work enough for four threads, two: partial results over chunks, then their combination.

    before: s = sum over i < 1000000 of x[i]
    after:  p[c] = sum over l < 15625 of x[15625*c + l];  s = sum over c < 64 of p[c]

    A symbolic axis becomes chunks as a whole, if another one is left: before sum over i < s0, j < s1; after p[i].
    """
    if len(group.definitions) != 1:
        return [group]
    whole = group.definitions[0]
    if not isinstance(whole, Reduce) or whole.op in ("argmax", "argmin"):
        return [group]
    rows, size = _product(whole.axes, hints), _product(whole.over, hints)
    if rows is None or size is None or rows * size < 4 * machine.kernel_work or size < _DEEP * max(rows, 1):
        return [group]
    if rows >= machine.few_items and _reads_along(whole):
        return [group]
    split = _chunks(whole.over, machine, hints)
    if split is None:
        return [group]
    chunks, over, mapping = split
    value = move(whole.value, mapping, {})
    axes = (*chunks, *whole.axes)
    partial = _row_major_buffer(f"{name}_partial", value.dtype, axes)
    first = Reduce(partial, axes, over, tuple(Index.var(axis.name) for axis in axes), whole.op, value, None)
    again = Load(partial, first.index)
    second = replace(whole, over=chunks, value=again)
    return [Group("rows", (first,), axes), Group("rows", (second,), whole.axes)]


def _product(axes: tuple[Axis, ...], hints: Mapping[str, int]) -> int | None:
    total = 1
    for axis in axes:
        size = likely(axis.extent, hints)
        if size is None:
            return None
        total *= size
    return total


def _reads_along(whole: Reduce) -> bool:
    """Whether some load is contiguous along a reduced axis."""
    extents = {axis.name: axis.extent for axis in (*whole.axes, *whole.over)}
    offsets = [flat_load(load, extents).index[0] for load in loads(whole.value)]
    return any(stride_of(offset, axis.name) == 1 for offset in offsets for axis in whole.over)


def _chunks(
    over: tuple[Axis, ...], machine: Machine, hints: Mapping[str, int]
) -> tuple[tuple[Axis, ...], tuple[Axis, ...], dict[str, Index]] | None:
    """Leading reduced axes as chunks, the last of them split if it is long; None if that gives too few."""
    chunks: list[Axis] = []
    count = 1
    rest = list(over)
    mapping: dict[str, Index] = {}
    while rest and count < machine.many_items:
        axis = rest[0]
        size = likely(axis.extent, hints)
        if size is None:
            return None
        wanted = -(-machine.many_items // count)
        if size <= 2 * wanted or not axis.extent.is_const:
            chunks.append(rest.pop(0))
            count *= size
            continue
        pieces = next((n for n in range(wanted, min(4 * wanted, size) + 1) if size % n == 0), None)
        if pieces is None:
            break
        chunks.append(Axis(f"{axis.name}h", as_index(pieces)))
        rest[0] = Axis(f"{axis.name}l", as_index(size // pieces))
        mapping[axis.name] = Index.var(f"{axis.name}h") * (size // pieces) + Index.var(f"{axis.name}l")
        count *= pieces
    if count < 8 or not rest:
        return None
    return tuple(chunks), tuple(rest), mapping


def _row_major_buffer(name: str, dtype: DType, axes: tuple[Axis, ...]) -> Buffer:
    strides: list[Index] = []
    step = ONE
    for axis in reversed(axes):
        strides.append(step)
        step = step * axis.extent
    return Buffer(name, dtype, tuple(axis.extent for axis in axes), tuple(reversed(strides)))
