"""From a group to its nest: values placed in phases, reads between definitions turned into locals or scratch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lampwork.errors import InvalidLoopsError
from lampwork.loops.fusion.group import Group
from lampwork.loops.fusion.invert import invert
from lampwork.loops.ir.addresses import flat_load
from lampwork.loops.ir.expr import cast_to, loads
from lampwork.loops.ir.index import ONE, ZERO, Index
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Buffer, Const, Expr, IndexValue, Load, Local, Map, Op, Reduce
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.schedule.nest import Item, Nest, Phase


@dataclass(slots=True)
class _Made:
    """A buffer that the group has made so far."""

    definition: Map | Reduce
    inner: tuple[Axis, ...]
    item: Item
    phase: int
    is_row_value: bool  # one value a row: a local for the rest of the row once its phase is over


def build_nest(group: Group, machine: Machine, hints: Mapping[str, int]) -> tuple[Nest, list[Buffer]]:
    """The nest of a pointwise or rows group, and the scratch buffers it needs (private values that a later phase or
    another point of the row reads).

    before: m = max_j x[i, j]; e[i, j] = exp(x[i, j] - m[i]); s[i] = sum_j e[i, j]; y[i, j] = e[i, j] / s[i]
    after:  rows i; phase j: m = max x; phase j: e = exp(x - m) to scratch, s = sum e; phase j: y = scratch / s

    Raises:
        InvalidLoopsError: a definition reads of another one what a different row makes.
    """
    builder = _Builder(group, Nest(list(group.rows), [], machine, hints))
    for definition in group.definitions:
        if not isinstance(definition, Map | Reduce):
            raise InvalidLoopsError(f"a {type(definition).__name__} in a {group.kind} group")
        builder.add(definition)
    return builder.nest, builder.scratch


class _Builder:
    def __init__(self, group: Group, nest: Nest) -> None:
        self.group = group
        self.row_names = {axis.name for axis in group.rows}
        self.nest = nest
        self.scratch: list[Buffer] = []
        self.made: dict[str, _Made] = {}

    def add(self, definition: Map | Reduce) -> None:
        inner = self._inner(definition)
        number = len(self.made)
        phase = self._place(definition, inner)
        extents = {axis.name: axis.extent for axis in (*self.group.rows, *inner)}
        out = definition.out
        value = self._rewrite(definition.value, phase, inner, extents)
        item = Item(f"t{number}", out, value)
        if out.name not in self.group.private:
            target = flat_load(Load(out, definition.index), extents)
            item.target = target
        if isinstance(definition, Reduce):
            item.op, item.acc = definition.op, f"a{number}"
            result = definition.op in ("argmax", "argmin")
            acc = Local(item.acc, "i64" if result else value.dtype)
            finish: Expr = acc
            if definition.finish is not None:
                finish = rewrite(
                    definition.finish, {Local: lambda local: acc if local.name == "acc" else local}
                )
            item.finish = cast_to(self._rewrite(finish, phase, inner, extents), out.dtype)
            if result:
                item.position = IndexValue(row_major(inner), "i64")
        else:
            item.value, item.combine = cast_to(value, out.dtype), definition.combine
        self.nest.phases[phase].items.append(item)
        is_row_value = isinstance(definition, Reduce) or not inner
        self.made[out.name] = _Made(definition, inner, item, phase, is_row_value)

    def _inner(self, definition: Map | Reduce) -> tuple[Axis, ...]:
        names = {axis.name for axis in definition.axes}
        if not self.row_names <= names:
            raise InvalidLoopsError(f"{definition.out.name} does not have the row axes of its group")
        if isinstance(definition, Map):
            return tuple(axis for axis in definition.axes if axis.name not in self.row_names)
        if names != self.row_names:
            raise InvalidLoopsError(
                f"the reduction {definition.out.name} keeps axes that are not rows of its group"
            )
        return definition.over

    def _place(self, definition: Map | Reduce, inner: tuple[Axis, ...]) -> int:
        """The first phase over `inner` in which everything read is there."""
        first = 0
        exprs = [definition.value]
        if isinstance(definition, Reduce) and definition.finish is not None:
            exprs.append(definition.finish)
        for expr in exprs:
            for load in loads(expr):
                made = self.made.get(load.buffer.name)
                if made is None:
                    continue
                together = (
                    isinstance(made.definition, Map)
                    and load.index == made.definition.index
                    and set(made.inner) == set(inner)
                )
                first = max(first, made.phase if together else made.phase + 1)
        for phase in range(first, len(self.nest.phases)):
            if set(self.nest.phases[phase].inner) == set(inner):
                return phase
        self.nest.phases.append(Phase(list(inner)))
        return len(self.nest.phases) - 1

    def _rewrite(self, expr: Expr, phase: int, inner: tuple[Axis, ...], extents: Mapping[str, Index]) -> Expr:
        def on_load(load: Load) -> Expr:
            made = self.made.get(load.buffer.name)
            if made is None:
                return flat_load(load, extents)
            same_point = load.index == made.definition.index
            if same_point and (made.is_row_value or (made.phase == phase and set(made.inner) == set(inner))):
                return _masked(Local(made.item.name, load.dtype), load)
            if made.is_row_value:
                if not self._same_row(load, made, extents):
                    raise InvalidLoopsError(
                        f"{load.buffer.name} is read at another row than the one that makes it"
                    )
                return _masked(Local(made.item.name, load.dtype), load)
            if load.buffer.name not in self.group.private:
                return flat_load(load, extents)
            return self._from_scratch(load, made, extents)

        return rewrite(expr, {Load: on_load})

    def _same_row(self, load: Load, made: _Made, extents: Mapping[str, Index]) -> bool:
        point = self._solve(load, made, extents)
        return point is not None and all(point[name] == Index.var(name) for name in self.row_names)

    def _solve(self, load: Load, made: _Made, extents: Mapping[str, Index]) -> dict[str, Index] | None:
        axes = (*self.group.rows, *(() if isinstance(made.definition, Reduce) else made.inner))
        return invert(made.definition.index, load.index, axes, load.buffer.shape, extents)

    def _from_scratch(self, load: Load, made: _Made, extents: Mapping[str, Index]) -> Load:
        """Another phase's value, at any inner point of this row."""
        point = self._solve(load, made, extents)
        if point is None or any(point[name] != Index.var(name) for name in self.row_names):
            raise InvalidLoopsError(f"{load.buffer.name} is read at another row than the one that makes it")
        if made.item.target is None:
            elements = ONE
            for axis in made.inner:
                elements = elements * axis.extent
            scratch = Buffer(load.buffer.name, load.buffer.dtype, (elements,), (ONE,))
            self.scratch.append(scratch)
            made.item.target = Load(scratch, (row_major(made.inner),))
        place = row_major(made.inner).substitute(point)
        return Load(made.item.target.buffer, (place,), load.mask, load.other)


def row_major(axes: tuple[Axis, ...]) -> Index:
    """The row-major place of a point of the axes."""
    place = ZERO
    for axis in axes:
        place = place * axis.extent + Index.var(axis.name)
    return place


def _masked(value: Expr, load: Load) -> Expr:
    if load.mask is None:
        return value
    return Op("where", (load.mask, value, Const(load.other, load.dtype)), value.dtype)
