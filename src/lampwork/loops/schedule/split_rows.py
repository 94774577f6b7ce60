"""Few long rows, cut into pieces so that all multiprocessors of a card share each of them.

before: m = max_j x[i, j]; s = sum_j exp(x[i, j] - m); y[i, j] = exp(x[i, j] - m) / s       for i < 64, j < 262144
after:  over (i, c):  p[i, c] = max_l x;  q[i, c] = sum_l exp(x - p[i, c])                   with j = 8192*c + l
        over (i, c):  m = max_d p[i, d];  s = sum_d q[i, d] * exp(p[i, d] - m);  y = exp(x - m) / s

What one reduction needs of another is known only when all pieces are done, so each step of such a chain is a kernel.
Two kinds of sums need not wait: those of exponentials of distances from the maximum, and of squares of distances from
the mean, are made about the maximum or the mean of the piece, and corrected when the pieces are put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lampwork.loops.fusion.fuse_inline import inlined
from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.definitions import outs_of, points
from lampwork.loops.ir.expr import loads, move
from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Buffer, Const, Definition, DType, Expr, Load, Local, Map, Op, Reduce
from lampwork.loops.ir.traverse import rewrite
from lampwork.loops.schedule.split_reduce import reads_along
from lampwork.records import record

PIECE = 8192
"""Elements of a piece, about: its threads have them in registers from one reduction to the next."""


def split_rows(group: Group, name: str, machine: Machine) -> list[Group] | None:
    """The groups of the steps; None for rows that are short, or enough for the multiprocessors."""
    rows, count = points(group.rows).as_int(), machine.processors
    if group.kind != "rows" or not count or rows is None or not _are_few(rows, machine):
        return None
    definitions = by_themselves(group)
    if definitions is None:
        return None
    domains = {frozenset(inner_axes(each, group.rows)) for each in definitions} - {frozenset()}
    if len(domains) != 1 or any(isinstance(each, Reduce) and not each.over for each in definitions):
        return None
    inner = next(inner_axes(each, group.rows) for each in definitions if inner_axes(each, group.rows))
    size, length = points(inner).as_int(), inner[0].extent.as_int()
    if size is None or length is None or not is_few(rows, size, machine):
        return None
    wanted = size // PIECE
    made = {each.out.name for each in definitions}
    if not any(load.buffer.name in made for each in definitions for load in _loads(each)):
        # Nothing has to stay in registers: as many as run at a time, so that none begins when others end.
        wanted = max(min(wanted, machine.pieces(rows, along=True)), 2)
    pieces = next((n for n in range(wanted, max(wanted // 4, 1), -1) if length % n == 0), None)
    if pieces is None:
        return None
    steps = _Steps(group, name, inner[0], pieces)
    return steps.groups(definitions)


def _are_few(rows: int, machine: Machine) -> bool:
    return rows < machine.processors * 3 // 4


def is_few(rows: int, size: int, machine: Machine) -> bool:
    """Whether rows of so many elements are so few that they leave multiprocessors idle, and so long that it matters."""
    return _are_few(rows, machine) and size >= 2 * PIECE and rows * size >= 4 * machine.kernel_work


def inner_axes(each: Map | Reduce, rows: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes of a definition within a row."""
    return each.over if isinstance(each, Reduce) else tuple(axis for axis in each.axes if axis not in rows)


def by_themselves(group: Group) -> list[Map | Reduce] | None:
    """The definitions, each with the values of points that it reads of others computed where it reads them; None if
    they cannot be."""
    found: list[Definition] = list(group.definitions)
    for name in [
        each.out.name for each in found if isinstance(each, Map) and len(each.axes) > len(group.rows)
    ]:
        (producer,) = (now for now in found if isinstance(now, Map) and now.out.name == name)
        for number, reader in enumerate(found):
            if any(load.buffer.name == name for load in _loads(reader)):
                result = inlined(producer, reader)
                if isinstance(result, str):
                    return None
                found[number] = result
        if name in group.private:
            found.remove(producer)
    kept = [each for each in found if isinstance(each, Map | Reduce)]
    simple = all(not isinstance(each, Reduce) or each.op not in ("argmax", "argmin") for each in kept)
    return kept if simple and len(kept) == len(found) else None


def _loads(each: Definition) -> list[Load]:
    if not isinstance(each, Map | Reduce):
        return []
    finish = each.finish if isinstance(each, Reduce) else None
    return loads(each.value, *([] if finish is None else [finish]))


@record
class _Part:
    """A reduction of pieces, with its results for each, made in this step. centre: the reduction whose result its
    values are distances from, in a piece from that of the piece alone; as the exponentials of distances from a maximum,
    or the squares of distances from a mean."""

    whole: Reduce
    out: Buffer
    step: int
    centre: Reduce | None = None


@dataclass(slots=True)
class _Steps:
    """The kernels of one group, the rows of which are cut along `axis`. maps: values of whole rows."""

    group: Group
    name: str
    axis: Axis
    pieces: int
    parts: dict[str, _Part] = field(default_factory=dict[str, _Part])
    maps: dict[str, Map] = field(default_factory=dict[str, Map])
    made: dict[int, list[Map | Reduce]] = field(default_factory=dict[int, list[Map | Reduce]])

    def groups(self, definitions: Sequence[Map | Reduce]) -> list[Group] | None:
        """None where a definition reads what another row or point makes, or nothing waits for the end of a row."""
        known = {each.out.name: each for each in definitions}
        for each in definitions:
            for load in _loads(each):
                maker = known.get(load.buffer.name)
                if maker is not None and (load.index != maker.index or load.mask is not None):
                    return None
            if isinstance(each, Reduce):
                if each.finish is not None and loads(each.finish):
                    return None
                self._cut(each)
            elif len(each.axes) == len(self.group.rows):
                self.maps[each.out.name] = each
            else:
                self._store(each)
        # What is read once anyway is worth it for rows, each of which is finished by the block that comes last to it.
        parts = self.parts.values()
        is_one = len(self.made) == 1 and not any(part.centre for part in parts)
        if is_one and not (self.group.rows and all(reads_along(part.whole) for part in parts)):
            return None
        found = [self._group(step) for step in sorted(self.made)]
        private = self.group.private
        results = {name for name in (*self.parts, *self.maps) if name not in private}
        if results:
            rows = _Rows(self, self.group.rows, [])
            for name in results:
                rows.value(name)
            names = frozenset(name for name in (*self.parts, *self.maps) if name in private)
            found.append(Group("rows", tuple(rows.definitions), self.group.rows, names))
        return found

    @property
    def piece(self) -> Axis:
        return Axis(f"{self.axis.name}h", as_index(self.pieces))

    @property
    def along(self) -> Axis:
        return Axis(f"{self.axis.name}l", self.axis.extent // self.pieces)

    def buffer(self, name: str, dtype: DType) -> Buffer:
        """A value for each piece of each row."""
        shape, strides = (*(axis.extent for axis in self.group.rows), as_index(self.pieces)), [ONE]
        for extent in reversed(shape[1:]):
            strides.insert(0, strides[0] * extent)
        return Buffer(name, dtype, shape, tuple(strides))

    def at(self, axis: Axis) -> tuple[Index, ...]:
        """The place of a piece of a row."""
        return tuple(Index.var(each.name) for each in (*self.group.rows, axis))

    def centre_of(self, part: _Part, axis: Axis) -> Expr:
        """The maximum or mean of a piece alone."""
        own = Load(part.out, self.at(axis))
        if part.whole.op == "max":
            return own
        return Op("mul", (own, Const(1 / self._points(), own.dtype)), own.dtype)

    def corrected(self, part: _Part, centre: Expr, axis: Axis) -> Expr:
        """What a piece adds to a sum about `centre`."""
        own = Load(part.out, self.at(axis))
        if part.centre is None:
            return own
        about, dtype = self.centre_of(self.parts[part.centre.out.name], axis), own.dtype
        apart = Op("sub", (about, centre), dtype)
        if part.centre.op == "sum":
            count = Const(float(self._points()), dtype)
            return Op("add", (own, Op("mul", (count, Op("mul", (apart, apart), dtype)), dtype)), dtype)
        # Where all of a piece is -inf its own sum is nan, and it has no part in that of the row.
        empty = Op("eq", (about, Const(float("-inf"), dtype)), "bool")
        scaled = Op("mul", (own, Op("exp", (apart,), dtype)), dtype)
        others = Op("where", (empty, Const(0.0, dtype), scaled), dtype)
        return Op("where", (Op("eq", (about, centre), "bool"), own, others), dtype)

    def _points(self) -> int:
        """Of a piece."""
        first = next(iter(self.parts.values())).whole
        return (points(first.over).as_int() or 0) // self.pieces

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self, value: Expr) -> int:
        """The first step in which all that a value reads is known."""
        found = 0
        for load in loads(value):
            if load.buffer.name in self.parts:
                found = max(found, self.parts[load.buffer.name].step + 1)
            elif load.buffer.name in self.maps:
                found = max(found, self._step(self.maps[load.buffer.name].value))
        return found

    def _cut(self, whole: Reduce) -> None:
        centre, value, step = self._centre(whole), whole.value, self._step(whole.value)
        if centre is not None:
            part = self.parts[centre.out.name]
            step, about = part.step, self.centre_of(part, self.piece)
            value = rewrite(
                value, {Load: lambda load: about if load.buffer.name == centre.out.name else load}
            )
        number = len(self.parts)
        out = self.buffer(f"{self.name}_partial{number or ''}", value.dtype)
        axes = tuple(self.along if axis == self.axis else axis for axis in whole.over)
        moved = self._moved(value, step)
        reduced = Reduce(
            out, (*self.group.rows, self.piece), axes, self.at(self.piece), whole.op, moved, None
        )
        self.made.setdefault(step, []).append(reduced)
        self.parts[whole.out.name] = _Part(whole, out, step, centre)

    def _store(self, each: Map) -> None:
        step = self._step(each.value)
        mapping, value = self._mapping(), self._moved(each.value, step)
        axes = [
            self.along if axis == self.axis else axis for axis in each.axes if axis not in self.group.rows
        ]
        index = tuple(place.substitute(mapping) for place in each.index)
        moved = Map(each.out, (*self.group.rows, self.piece, *axes), index, value)
        self.made.setdefault(step, []).append(moved)

    def _mapping(self) -> dict[str, Index]:
        return {self.axis.name: Index.var(self.piece.name) * self.along.extent + Index.var(self.along.name)}

    def _moved(self, value: Expr, step: int) -> Expr:
        """A value at a point of a piece, with the values of its row put together before."""
        rows = _Rows(self, (*self.group.rows, self.piece), self.made.setdefault(step, []))
        names = {*self.parts, *self.maps}

        def on_load(load: Load) -> Expr:
            return rows.value(load.buffer.name) if load.buffer.name in names else load

        return rewrite(move(value, self._mapping(), {}), {Load: on_load})

    def _group(self, step: int) -> Group:
        """Every other step takes the rows from the last one on: what the step before read last may still be in a
        cache."""
        definitions = self.made[step]
        first = self.group.rows[0] if self.group.rows else None
        if first is not None and step % 2:
            turned = {first.name: first.extent - 1 - Index.var(first.name)}
            definitions = [move(each, turned, {first.name: first.extent}) for each in definitions]
        own = {out.name for each in definitions for out in outs_of(each)}
        kept = {part.out.name for part in self.parts.values()} | {out.name for out in self.group.outs}
        return Group("rows", tuple(definitions), (*self.group.rows, self.piece), frozenset(own - kept))

    # --- sums about a centre ------------------------------------------------------------------------------------------

    def _centre(self, whole: Reduce) -> Reduce | None:
        """The reduction whose result a sum can do without, if there is one."""
        value = whole.value
        if whole.op != "sum" or not isinstance(value, Op):
            return None
        if value.name == "exp":
            apart, of = value.args[0], "max"
        elif value.name in ("product", "mul") and value.args[0] == value.args[1]:
            apart, of = value.args[0], "sum"
        else:
            return None
        if not isinstance(apart, Op) or apart.name != "sub" or not isinstance(apart.args[1], Load):
            return None
        part = self.parts.get(apart.args[1].buffer.name)
        if (
            part is None
            or part.whole.op != of
            or part.centre is not None
            or part.whole.value != apart.args[0]
        ):
            return None
        if apart.args[1].dtype != apart.dtype or part.whole.value.dtype != apart.dtype:
            return None
        return part.whole if _is_centre(part.whole) else None


def _is_centre(whole: Reduce) -> bool:
    """Whether a reduction is a maximum, or a mean."""
    end = whole.finish
    if whole.op == "max":
        return end is None
    while isinstance(end, Op) and end.name == "require":
        end = end.args[0]
    if not isinstance(end, Op) or end.name != "div":
        return False
    over, by = end.args
    count = points(whole.over).as_int()
    return isinstance(over, Local) and isinstance(by, Const) and by.value == count


class _Rows:
    """Definitions that put the results of pieces together, once for each of `axes`: the rows, or rows and pieces."""

    def __init__(self, steps: _Steps, axes: Sequence[Axis], definitions: list[Map | Reduce]) -> None:
        self.steps, self.axes = steps, tuple(axes)
        self.definitions = definitions

    def value(self, name: str) -> Load:
        """The value of a row."""
        steps, is_row = self.steps, len(self.axes) == len(self.steps.group.rows)
        index = tuple(Index.var(axis.name) for axis in self.axes)
        whole = steps.parts[name].whole if name in steps.parts else steps.maps[name]
        out = whole.out if is_row else steps.buffer(f"{name}_again", whole.out.dtype)
        if is_row:
            index = whole.index
        found = Load(out, index)
        if any(each.out.name == out.name for each in self.definitions):
            return found
        if isinstance(whole, Map):
            names = {*steps.parts, *steps.maps}
            value = rewrite(
                whole.value,
                {Load: lambda load: self.value(load.buffer.name) if load.buffer.name in names else load},
            )
            self.definitions.append(Map(out, self.axes, index, value))
            return found
        part, other = steps.parts[name], Axis(f"{steps.axis.name}o", as_index(steps.pieces))
        centre: Expr = found if part.centre is None else self.value(part.centre.out.name)
        value = steps.corrected(part, centre, other)
        self.definitions.append(Reduce(out, self.axes, (other,), index, whole.op, value, whole.finish))
        return found
