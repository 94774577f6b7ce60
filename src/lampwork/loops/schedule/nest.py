"""`Nest`: a loop nest while `schedule` shapes it, with memory addressed flatly.

A nest has row axes, shared by everything, and phases, which run one after the other for each row. A phase has inner
axes and items: values computed at each inner point, stored or not, and reductions over all inner points. Axes are
rewritten here (dropped, split, sorted, merged); loops are made of them in schedule.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lampwork.loops.ir.expr import indices, move
from lampwork.loops.ir.index import ZERO, FloorDiv, Index, Indirect, Mod, Sym, Var
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Buffer, CombineOp, Expr, Load, ReduceOp
from lampwork.loops.ir.symbols import NO_HINTS, likely


@dataclass(slots=True)
class Item:
    """A value of a phase. `target` is where it is stored, as a Load of that place (None: only a local).

    A reduction has an `op`: its local is bound after the phase, from `finish` (over Local(acc)), and stored then.
    `position` is the row-major place in the reduced domain, for argmax and argmin. `combine`: how it is stored, if not
    in place of what is there.
    """

    name: str
    buffer: Buffer
    value: Expr
    target: Load | None = None
    op: ReduceOp | None = None
    acc: str = ""
    finish: Expr | None = None
    position: Expr | None = None
    combine: CombineOp | None = None

    def exprs(self) -> Iterator[Expr]:
        if self.target is not None:
            yield self.target
        yield self.value
        if self.finish is not None:
            yield self.finish
        if self.position is not None:
            yield self.position

    def substitute(self, mapping: Mapping[str, Index], extents: Mapping[str, Index]) -> None:
        self.value = move(self.value, mapping, extents)
        if self.target is not None:
            self.target = move(self.target, mapping, extents)
        if self.finish is not None:
            self.finish = move(self.finish, mapping, extents)
        if self.position is not None:
            self.position = move(self.position, mapping, extents)


@dataclass(slots=True)
class Phase:
    """One pass over inner axes."""

    inner: list[Axis]
    items: list[Item] = field(default_factory=list[Item])

    @property
    def reduces(self) -> bool:
        return any(item.op is not None for item in self.items)


@dataclass(slots=True)
class Nest:
    """Loops that are to run on `machine`. `hints`: likely values of symbols, to choose by."""

    rows: list[Axis]
    phases: list[Phase]
    machine: Machine
    hints: Mapping[str, int]

    def extents(self) -> dict[str, Index]:
        every = [*self.rows, *(axis for phase in self.phases for axis in phase.inner)]
        return {axis.name: axis.extent for axis in every}

    # --- rewriting axes -----------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Drops axes of extent 1, splits those that accesses divide, sorts by stride, merges what is contiguous."""
        self._drop_units()
        self._split_divided()
        self._sort()
        self._merge()

    def _drop_units(self) -> None:
        units = {axis.name: ZERO for axis in self.rows if axis.extent.as_int() == 1}
        if units:
            self.rows = [axis for axis in self.rows if axis.name not in units]
            self._substitute(self.phases, units)
        for phase in self.phases:
            units = {axis.name: ZERO for axis in phase.inner if axis.extent.as_int() == 1}
            if units:
                phase.inner = [axis for axis in phase.inner if axis.name not in units]
                self._substitute([phase], units)

    def _substitute(self, phases: Iterable[Phase], mapping: Mapping[str, Index]) -> None:
        extents = self.extents()
        for phase in phases:
            for item in phase.items:
                item.substitute(mapping, extents)

    def _split_divided(self) -> None:
        """i -> c*i_hi + i_lo, where accesses use i // c or i % c and c divides the extent."""
        if all(index.is_flat for index in accesses(self.phases)):
            return
        repeating = self._repeating()
        while (
            found := find_division(self._without(self.rows, repeating), accesses(self.phases))
        ) is not None:
            self.rows, mapping = split_axis(self.rows, *found)
            self._substitute(self.phases, mapping)
        for phase in self.phases:
            while (
                found := find_division(self._without(phase.inner, repeating), accesses([phase]))
            ) is not None:
                phase.inner, mapping = split_axis(phase.inner, *found)
                self._substitute([phase], mapping)

    def _repeating(self) -> set[str]:
        """Axes along which stores lie side by side and loads repeat their elements: they stay whole, since a vector of
        them is one load and a shuffle, where a split one would be stored element by element."""
        lanes = self.machine.lanes("f64")
        targets = [
            index
            for phase in self.phases
            for item in phase.items
            if item.target is not None
            for index in item.target.index
        ]
        used = accesses(self.phases)
        axes = [axis for phase in self.phases for axis in (*self.rows, *phase.inner)]
        if not targets or len(axes) < 2:
            return set()
        return {
            axis.name
            for axis in axes
            if all(_is_one(index.coefficient(axis.name)) for index in targets)
            and all(repeats(index, axis.name, lanes) for index in used)
        }

    @staticmethod
    def _without(axes: Sequence[Axis], names: set[str]) -> list[Axis]:
        return [axis for axis in axes if axis.name not in names]

    def _sort(self) -> None:
        """Largest strides outermost, by the stores first, then by the loads."""
        self.rows = sort_axes(self.rows, self.phases, self.hints)
        for phase in self.phases:
            phase.inner = sort_axes(phase.inner, [phase], self.hints)

    def _merge(self) -> None:
        self.rows = self._merge_list(self.rows, self.phases)
        for phase in self.phases:
            phase.inner = self._merge_list(phase.inner, [phase])

    def _merge_list(self, axes: list[Axis], phases: Sequence[Phase]) -> list[Axis]:
        """a, b -> b of extent a*b, where every access has stride(a) = stride(b) * extent(b)."""
        merged = list(axes)
        position = len(merged) - 2
        while position >= 0:
            outer, inner = merged[position], merged[position + 1]
            if all(is_mergeable(index, outer.name, inner) for index in accesses(phases)):
                merged[position : position + 2] = [Axis(inner.name, outer.extent * inner.extent)]
                self._substitute(phases, {outer.name: ZERO})
            position -= 1
        return merged


# --- accesses ---------------------------------------------------------------------------------------------------------


def accesses(phases: Iterable[Phase]) -> list[Index]:
    """Every index expression used in the phases."""
    return indices(*(expr for phase in phases for item in phase.items for expr in item.exprs()))


def find_division(axes: Sequence[Axis], used: Iterable[Index]) -> tuple[Axis, int] | None:
    """An axis that some access divides by a constant which divides its extent."""
    extents = {axis.name: axis for axis in axes if axis.extent.as_int() is not None}
    for index in used:
        if index.is_flat:
            continue
        for atom in _divisions(index):
            name, divisor = atom.a.as_var(), atom.b.as_int()
            if name is None or divisor is None or name not in extents:
                continue
            size = extents[name].extent.as_int() or 0
            if size > divisor and size % divisor == 0:
                return extents[name], divisor
    return None


def repeats(index: Index, name: str, lanes: int) -> bool:
    """Whether an index has the variable in no division, or only in terms (variable + number) // divisor and
    (variable + number) % divisor by divisors of the number of lanes, so that the elements of a vector lie within as
    many as it has lanes."""
    divided, offsets = False, [0] * lanes
    for monomial, coefficient in index.terms:
        for atom in monomial:
            if isinstance(atom, Var) and atom.name == name:
                if len(monomial) > 1:
                    return not _divides(index, name)
                offsets = [offset + coefficient * lane for lane, offset in enumerate(offsets)]
            if isinstance(atom, Var | Sym) or name not in Index.of_atom(atom).variables():
                continue
            if not isinstance(atom, FloorDiv | Mod) or len(monomial) > 1:
                return False
            divisor, shift = atom.b.as_int(), atom.a.without(name).as_int()
            if divisor is None or shift is None or lanes % divisor or not _is_one(atom.a.coefficient(name)):
                return False
            divided = True
            places = [lane + shift % divisor for lane in range(lanes)]
            steps = [at % divisor if isinstance(atom, Mod) else at // divisor for at in places]
            offsets = [offset + coefficient * step for offset, step in zip(offsets, steps, strict=True)]
    return not divided or max(offsets) - min(offsets) < lanes


def _divides(index: Index, name: str) -> bool:
    """Whether the variable is in a division."""
    return any(
        not isinstance(atom, Var | Sym) and name in Index.of_atom(atom).variables()
        for monomial, _ in index.terms
        for atom in monomial
    )


def _is_one(index: Index | None) -> bool:
    return index is not None and index.as_int() == 1


def _divisions(index: Index) -> Iterator[FloorDiv | Mod]:
    for atom in index.atoms():
        if isinstance(atom, FloorDiv | Mod):
            yield atom
            yield from _divisions(atom.a)


def split_axis(axes: Sequence[Axis], axis: Axis, divisor: int) -> tuple[list[Axis], dict[str, Index]]:
    """The axes with `axis` split in two, and what to put for its variable."""
    high = Axis(f"{axis.name}h", axis.extent // divisor)
    low = Axis(f"{axis.name}l", Index.const(divisor))
    result: list[Axis] = []
    for each in axes:
        result.extend((high, low) if each.name == axis.name else (each,))
    return result, {axis.name: Index.var(high.name) * divisor + Index.var(low.name)}


def _likely_stride(index: Index, name: str, hints: Mapping[str, int]) -> int | None:
    """`stride_of`, of a symbolic stride the likely one."""
    factor = index.coefficient(name)
    if factor is None:
        return None
    value = None if factor.variables() else likely(factor, hints)
    return 1 << 40 if value is None else value


def sort_axes(axes: list[Axis], phases: Iterable[Phase], hints: Mapping[str, int] = NO_HINTS) -> list[Axis]:
    if len(axes) < 2:
        return axes
    stores: list[Index] = []
    loads: list[Index] = []
    for phase in phases:
        for item in phase.items:
            if item.position is not None:
                return axes
            if item.target is not None:
                stores.extend(item.target.index)
            loads.extend(indices(item.value))

    def key(axis: Axis) -> tuple[int, ...]:
        return tuple(-abs(_likely_stride(index, axis.name, hints) or 0) for index in (*stores, *loads))

    return sorted(axes, key=key)


def is_mergeable(index: Index, outer: str, inner: Axis) -> bool:
    """Whether an index depends on the two variables only as outer * extent(inner) + inner."""
    from_outer, from_inner = ZERO, ZERO
    for monomial, coefficient in index.terms:
        variables = [atom for atom in monomial if isinstance(atom, Var) and atom.name in (outer, inner.name)]
        for atom in monomial:
            if isinstance(atom, Var | Sym):
                continue
            if isinstance(atom, Indirect):
                if not all(is_mergeable(each, outer, inner) for each in indices(atom.value)):
                    return False
                inside = Index.of_atom(atom).variables()
            else:
                inside = Index.of_atom(atom).variables()
                if outer in inside or inner.name in inside:
                    return False
            if variables and (outer in inside or inner.name in inside):
                return False
        if len(variables) > 1:
            return False
        if variables:
            rest = tuple(atom for atom in monomial if atom is not variables[0])
            term = Index(((rest, coefficient),))
            if variables[0].name == outer:
                from_outer = from_outer + term
            else:
                from_inner = from_inner + term
    return from_outer == from_inner * inner.extent
