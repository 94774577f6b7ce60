"""What joining a group would do to memory accesses: whether threads, vectors and scratch still have what they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import gcd

from lampwork.loops.fusion.align import Domain
from lampwork.loops.ir.addresses import ITEM_BYTES, offset_of, stride_of
from lampwork.loops.ir.definitions import domain, extents_of, points
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.grid import HELD, PORTABLE, REGISTER
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Definition, Load, Map, Reduce
from lampwork.loops.ir.symbols import likely

_WAYS = 8
"""How many lines a first-level cache keeps of those that lie in the same place of it."""


class Layout:
    """Answers about definitions; remembers their offsets in memory. Symbolic sizes count as their `hints`."""

    def __init__(self, hints: Mapping[str, int], machine: Machine) -> None:
        self._hints = hints
        self._machine = machine
        self._offsets: dict[int, tuple[Map | Reduce, list[Index]]] = {}

    def offsets(self, member: Map | Reduce) -> list[Index]:
        """Where a definition stores, and then where it loads, in elements."""
        known = self._offsets.get(id(member))
        if known is None:
            extents = extents_of(domain(member))
            found = [offset_of(Load(member.out, member.index), extents)]
            found.extend(offset_of(load, extents) for load in loads(member.value))
            known = self._offsets[id(member)] = (member, found)
        return known[1]

    def rows_side_by_side(self, rows: Sequence[Axis], members: Sequence[Definition]) -> list[Axis]:
        """The row axes along which memory is contiguous. Values of whole rows do not count: they are few."""
        names = {axis.name for axis in rows}
        full = [
            offset
            for member in members
            if isinstance(member, Map | Reduce)
            for offset in self.offsets(member)
            if not offset.variables() <= names
        ]
        return [axis for axis in rows if any(stride_of(offset, axis.name) == 1 for offset in full)]

    def too_few_rows(self, group: Domain, members: Sequence[Map | Reduce]) -> str:
        """Why threads would idle over these rows; empty if they would not."""
        rows = likely(points(group.rows), self._hints)
        large = 2 * self._machine.kernel_work  # points that are worth two threads
        if rows is None or rows >= self._machine.few_items * self._machine.long_axis:
            return ""  # enough, even if they lie side by side and a vector takes many of them
        names = {axis.name for axis in group.rows}
        inner = max(
            likely(points(axis for axis in domain(member) if axis.name not in names), self._hints) or large
            for member in members
        )
        if rows * inner <= large or (self._machine.processors and _are_sums(members)):
            return ""
        if rows >= self._machine.least_items and not self.rows_side_by_side(group.rows, members):
            return ""
        if self._are_held(group, members):
            return ""
        return f"only {rows} rows of {inner} points, too few for the threads"

    def _are_held(self, group: Domain, members: Sequence[Map | Reduce]) -> bool:
        """Whether clusters of blocks can hold such rows, of all that several definitions read along them
        (schedule/clusters.py)."""
        if self._machine.cluster <= 1 or self.rows_side_by_side(group.rows, members):
            return False
        names = {axis.name for axis in group.rows}
        lengths = [
            points(axis for axis in domain(member) if axis.name not in names).as_int() for member in members
        ]
        readers: dict[str, int] = {}
        for member in members:
            along = [load for load in loads(member.value) if not _index_names(load) <= names]
            if any(ITEM_BYTES[load.dtype] > REGISTER for load in along):
                return False
            for name in {load.buffer.name for load in along} - {each.out.name for each in members}:
                readers[name] = readers.get(name, 0) + 1
        shared = sum(number > 1 for number in readers.values())
        return all(length is not None and length * max(shared, 1) <= PORTABLE * HELD for length in lengths)

    def deep_columns(self, group: Domain, definition: Map | Reduce, members: Sequence[Map | Reduce]) -> str:
        """Why a definition should not go down the columns that reductions have gone down: where these lie side by side
        and are deep, a vector of them has left the cache before its end. Alone it goes through memory in order."""
        rows = {axis.name for axis in group.rows}
        if isinstance(definition, Reduce):
            inner = definition.over
            results = {member.out.name for member in members if not _is_deep(member, rows)}
            if not any(load.buffer.name in results for load in loads(definition.value)):
                return ""  # in the same pass as the others
        else:
            inner = [axis for axis in definition.axes if axis.name not in rows]
            if not any(isinstance(member, Reduce) for member in members):
                return ""
        count = likely(points(inner), self._hints)
        if count is None or count <= _WAYS or not self.rows_side_by_side(group.rows, [definition]):
            return ""
        longest = max(inner, key=lambda axis: likely(axis.extent, self._hints) or 0)
        strides = (stride_of(offset, longest.name) for offset in self.offsets(definition))
        apart = max((stride for stride in strides if stride is not None), default=0)
        places = self._machine.alias_bytes // self._machine.cache_line
        lines = max(apart * ITEM_BYTES[definition.out.dtype] // self._machine.cache_line, 1)
        if count <= _WAYS * places // gcd(lines, places):
            return ""
        return f"columns of {count} points, which a cache does not keep"

    def holds_columns(self, group: Domain, definition: Map | Reduce, members: Sequence[Definition]) -> bool:
        """Whether a definition, if it is private, leaves its columns in scratch, where what reads them finds them."""
        deep = _is_deep(definition, {axis.name for axis in group.rows})
        return deep and self.fits_scratch(group, definition, members)

    def fits_scratch(self, group: Domain, definition: Definition, members: Sequence[Definition]) -> bool:
        """Whether a row of the definition can lie in scratch; of rows side by side, those of a vector's lanes."""
        if not isinstance(definition, Map):
            return True
        rows = {axis.name for axis in group.rows}
        inner = [axis for axis in definition.axes if axis.name not in rows]
        if not inner:
            return True
        row = likely(points(inner), self._hints)
        beside = likely(points(self.rows_side_by_side(group.rows, members)), self._hints)
        if row is None:
            return False
        lanes = self._machine.lanes(definition.out.dtype)
        count = row * (lanes if beside is None else min(beside, lanes))
        return count * ITEM_BYTES[definition.out.dtype] <= self._machine.private_bytes

    def strided_store(self, members: Sequence[Map], definition: Map) -> str:
        """Why a Map should not store in the loops of others: where they store side by side, it would not."""
        own = self.offsets(definition)[0]
        for member in members:
            other = self.offsets(member)[0]
            for axis in definition.axes:
                if stride_of(other, axis.name) == 1 and stride_of(own, axis.name) not in (0, 1):
                    return "it would store with a stride"
        return ""


def _are_sums(members: Sequence[Map | Reduce]) -> bool:
    """Whether definitions are reductions over the same points, and what is made of their results: they are cut into
    pieces together."""
    reductions = [member for member in members if isinstance(member, Reduce)]
    made = {member.out.name for member in members}
    read = {load.buffer.name for member in reductions for load in loads(member.value)}
    over = {frozenset(member.over) for member in reductions}
    return (
        len(over) == 1
        and not read & made
        and all(isinstance(member, Reduce) or member.axes == reductions[0].axes for member in members)
    )


def _is_deep(member: Map | Reduce, rows: Set[str]) -> bool:
    """Whether it has a value for each point of a row."""
    return isinstance(member, Map) and any(axis.name not in rows for axis in member.axes)


def _index_names(load: Load) -> frozenset[str]:
    """The loop variables that a load's place depends on."""
    return frozenset(name for index in load.index for name in index.variables())
