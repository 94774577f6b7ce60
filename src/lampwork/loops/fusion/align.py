"""Bringing definitions to common loop variables, so that they can share loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lampwork.loops.fusion.invert import invert
from lampwork.loops.ir.definitions import domain, extents_of, points
from lampwork.loops.ir.expr import loads, move
from lampwork.loops.ir.index import FloorDiv, Index, Mod, simplify
from lampwork.loops.ir.nodes import Axis, Definition, Load, Map, Reduce
from lampwork.records import record


@record
class Domain:
    """The loop variables of a group: its rows, and the inner domains of its members."""

    rows: tuple[Axis, ...]
    inners: tuple[tuple[Axis, ...], ...]

    @staticmethod
    def of(definition: Definition) -> Domain:
        if isinstance(definition, Reduce):
            return Domain(definition.axes, (definition.over,))
        return Domain((), (domain(definition),))


# --- pointwise --------------------------------------------------------------------------------------------------------


def join_pointwise(members: Sequence[Map], definition: Map) -> Map | str:
    """The Map in the variables of the members, if it reads each of them only at the same point; or why not.

    before: y[a, b] = x[a, b] + 1;  z[i] = y[i // 4, i % 4] * 2      after: z[4*a + b] = y[a, b] * 2
    """
    made = {member.out.name: member for member in members}
    link = next((load for load in loads(definition.value) if load.buffer.name in made), None)
    if link is None:
        return _beside(members, definition)
    member = made[link.buffer.name]
    if points(member.axes) != points(definition.axes):
        return "they do not have the same number of points"
    solution = invert(link.index, member.index, definition.axes, link.buffer.shape, extents_of(member.axes))
    if solution is None:
        return "its points cannot be traced to theirs"
    moved = _map_in(definition, member.axes, solution)
    return moved if _reads_same_points(moved, made) else "it reads them at other points"


def _beside(members: Sequence[Map], definition: Map) -> Map | str:
    """Maps over equal extents that share a load: one loop reads it once for both."""
    axes = members[0].axes
    if [axis.extent for axis in axes] != [axis.extent for axis in definition.axes]:
        return "they have other extents"
    mapping = {old.name: Index.var(new.name) for old, new in zip(definition.axes, axes, strict=True)}
    moved = _map_in(definition, axes, mapping)
    shared = {(load.buffer.name, load.index) for member in members for load in loads(member.value)}
    own = {(load.buffer.name, load.index) for load in loads(moved.value)}
    if not any(name_and_index in shared and name_and_index[1] for name_and_index in own):
        return "they share no load"
    return moved


def _map_in(definition: Map, axes: tuple[Axis, ...], solution: Mapping[str, Index]) -> Map:
    extents = extents_of(axes)

    index = tuple(move(position, solution, extents) for position in definition.index)
    return replace(definition, axes=axes, index=index, value=move(definition.value, solution, extents))


def _reads_same_points(definition: Map, made: Mapping[str, Map]) -> bool:
    return all(
        load.index == made[load.buffer.name].index
        for load in loads(definition.value)
        if load.buffer.name in made
    )


# --- rows -------------------------------------------------------------------------------------------------------------


def to_rows(members: Sequence[Map], definition: Reduce) -> tuple[Domain, list[Map]] | str:
    """The members in the variables of a reduction over them, whose kept axes become the rows; or why not.

    before: x[a, b] = p[a, b] + q[a, b];  m[i] = max over j of x[i, j]
    after:  x[i, j] = p[i, j] + q[i, j];  m[i] = max over j of x[i, j]
    """
    axes = domain(definition)
    extents = extents_of(axes)
    made = {member.out.name: member for member in members}
    link = next((load for load in loads(definition.value) if load.buffer.name in made), None)
    if link is None:
        return "the end of the reduction reads them"
    member = made[link.buffer.name]
    if points(member.axes) != points(axes):
        return "they do not have the same number of points"
    if not _is_onto(link, member, axes):
        return "its points cannot be traced to theirs"
    solution = invert(member.index, link.index, member.axes, link.buffer.shape, extents)
    if solution is None:
        return "their points cannot be traced to its points"
    moved = [_map_in(each, axes, solution) for each in members]
    result = Domain(definition.axes, (definition.over,))
    for load in loads(definition.value):
        each = next((m for m in moved if m.out.name == load.buffer.name), None)
        if each is not None and not _same_row(result.rows, each.axes, each.index, load, extents):
            return "it reads other rows of them"
    return result, moved


def _is_onto(link: Load, member: Map, axes: tuple[Axis, ...]) -> bool:
    """Whether every point of the member is read by one point of `axes`."""
    return invert(link.index, member.index, axes, link.buffer.shape, extents_of(member.axes)) is not None


def join_rows(
    group: Domain, members: Sequence[Map | Reduce], definition: Map | Reduce, *, anyway: bool = False
) -> tuple[Domain, Map | Reduce] | str:
    """The definition in the variables of a rows group, and the group's domain with it; or why not. `anyway`: two
    reductions of as many points to one need have no load in common.

    before: rows i: m[i] = max over j of x[i, j];  e[a, b] = exp(x[a, b] - m[a])
    after:  rows i: …;                             e[i, j] = exp(x[i, j] - m[i])
    """
    made = {member.out.name: member for member in members}
    places = _row_places(group, made, definition, anyway)
    if isinstance(places, str):
        return places
    definition, places = _split_for_rows(definition, places)
    mapping: dict[str, Index] = {}
    for row in group.rows:
        name = places[row.name].as_var()
        axis = next((axis for axis in definition.axes if axis.name == name), None)
        if axis is None or axis.extent != row.extent or axis.name in mapping:
            return "its rows are not theirs"
        mapping[axis.name] = Index.var(row.name)
    if isinstance(definition, Reduce) and len(mapping) != len(definition.axes):
        return "it keeps axes that are not rows of the group"
    rest = tuple(axis for axis in domain(definition) if axis.name not in mapping)
    inner = _inner_names(group, made, definition, rest, mapping)
    mapping |= {old.name: Index.var(new.name) for old, new in zip(rest, inner, strict=True)}
    moved = _renamed(definition, group.rows, inner, mapping)
    extents = extents_of((*group.rows, *inner))
    for load in loads(moved.value):
        member = made.get(load.buffer.name)
        if member is not None and not _same_row(group.rows, member.axes, member.index, load, extents):
            return "it reads other rows of the group"
    if isinstance(moved, Reduce) and moved.finish is not None:
        for load in loads(moved.finish):
            if load.buffer.name in made:
                return "the end of the reduction reads the group"
    inners = group.inners if inner in group.inners else (*group.inners, inner)
    return Domain(group.rows, inners), moved


def _row_places(
    group: Domain, made: Mapping[str, Map | Reduce], definition: Map | Reduce, anyway: bool
) -> dict[str, Index] | str:
    """The group's row variables as expressions over the definition's variables."""
    extents = extents_of(domain(definition))
    reason = "its rows cannot be traced to theirs"
    for load in loads(definition.value):
        member = made.get(load.buffer.name)
        if member is None:
            continue
        solution = invert(member.index, load.index, member.axes, load.buffer.shape, extents)
        if solution is not None:
            return {row.name: solution[row.name] for row in group.rows}
        reason = "what it reads of the group cannot be traced to a row"
    if any(load.buffer.name in made for load in loads(definition.value)):
        return reason
    return _places_beside(group, made, definition, anyway)


def _places_beside(
    group: Domain, made: Mapping[str, Map | Reduce], definition: Map | Reduce, anyway: bool
) -> dict[str, Index] | str:
    """For a definition that reads nothing of the group: the same extents, and a load in common."""
    if not isinstance(definition, Reduce):
        return "it reads nothing of the group"
    for member in made.values():
        if not isinstance(member, Reduce):
            continue
        own, theirs = domain(definition), domain(member)
        if [axis.extent for axis in own] != [axis.extent for axis in theirs]:
            continue
        if len(definition.axes) != len(member.axes):
            continue
        if anyway and not definition.axes:
            return {}
        mapping = {old.name: Index.var(new.name) for old, new in zip(own, theirs, strict=True)}
        shared = {(load.buffer.name, load.index) for load in loads(member.value)}
        for load in loads(definition.value):
            moved = tuple(position.substitute(mapping) for position in load.index)
            if (load.buffer.name, moved) in shared:
                pairs = zip(member.axes, definition.axes, strict=True)
                return {new.name: Index.var(old.name) for new, old in pairs}
    return "they share no load over the same domain"


def _split_for_rows(
    definition: Map | Reduce, places: dict[str, Index]
) -> tuple[Map | Reduce, dict[str, Index]]:
    """Splits the axes that rows are a quotient or remainder of.

    before: y[c] = … m[c // 4], c < 32      after: y[4*h + l] = … m[h], h < 8, l < 4
    """
    for _ in range(4):
        found = _division(definition.axes, places.values())
        if found is None:
            break
        axis, divisor = found
        high, low = Axis(f"{axis.name}h", axis.extent // divisor), Axis(f"{axis.name}l", Index.const(divisor))
        mapping = {axis.name: Index.var(high.name) * divisor + Index.var(low.name)}
        axes: list[Axis] = []
        for each in definition.axes:
            axes.extend((high, low) if each is axis else (each,))
        over = definition.over if isinstance(definition, Reduce) else ()
        definition = _renamed(definition, tuple(axes), over, mapping)
        extents = extents_of(domain(definition))
        places = {row: simplify(place.substitute(mapping), extents) for row, place in places.items()}
    return definition, places


def _division(axes: Sequence[Axis], places: Iterable[Index]) -> tuple[Axis, int] | None:
    by_name = {axis.name: axis for axis in axes}
    for place in places:
        atom = place.as_atom()
        if not isinstance(atom, FloorDiv | Mod):
            continue
        inside = atom.a.as_atom()
        if isinstance(inside, FloorDiv | Mod):
            atom = inside
        name, divisor = atom.a.as_var(), atom.b.as_int()
        if name in by_name and divisor is not None:
            size = by_name[name].extent.as_int()
            if size is not None and size % divisor == 0 and size > divisor:
                return by_name[name], divisor
    return None


def _inner_names(
    group: Domain,
    made: Mapping[str, Map | Reduce],
    definition: Map | Reduce,
    rest: tuple[Axis, ...],
    mapping: Mapping[str, Index],
) -> tuple[Axis, ...]:
    """Names for the inner axes: those of an inner domain of the group, by what is read at the same point of it, or
    else by equal extents; fresh ones if there is none."""
    extents = extents_of(domain(definition))
    rows = {row.name for row in group.rows}
    for load in loads(definition.value):
        member = made.get(load.buffer.name)
        if not isinstance(member, Map):
            continue
        inner = [axis for axis in member.axes if axis.name not in rows]
        solution = invert(member.index, load.index, member.axes, load.buffer.shape, extents)
        if solution is None or len(inner) != len(rest):
            continue
        by_old = {solution[axis.name].as_var(): axis for axis in inner}
        found = [by_old.get(axis.name) for axis in rest]
        names = tuple(axis for axis in found if axis is not None)
        if len(names) == len(rest) and all(
            new.extent == old.extent for new, old in zip(names, rest, strict=True)
        ):
            return names
    for inner in group.inners:
        if [axis.extent for axis in inner] == [axis.extent for axis in rest]:
            return inner
    taken = rows | {axis.name for inner in group.inners for axis in inner}
    fresh: list[Axis] = []
    for axis in rest:
        name = axis.name
        while name in taken:
            name += "x"
        taken.add(name)
        fresh.append(Axis(name, axis.extent))
    return tuple(fresh)


def _renamed(
    definition: Map | Reduce, rows: tuple[Axis, ...], inner: tuple[Axis, ...], mapping: Mapping[str, Index]
) -> Map | Reduce:
    """The definition over (rows, inner): both axes of a Map, the kept and the reduced ones of a Reduce."""
    extents = extents_of((*rows, *inner))

    index = tuple(move(position, mapping, extents) for position in definition.index)
    value = move(definition.value, mapping, extents)
    if isinstance(definition, Reduce):
        finish = None if definition.finish is None else move(definition.finish, mapping, extents)
        return replace(definition, axes=rows, over=inner, index=index, value=value, finish=finish)
    return replace(definition, axes=(*rows, *inner), index=index, value=value)


def _same_row(
    rows: tuple[Axis, ...],
    axes: tuple[Axis, ...],
    stored: tuple[Index, ...],
    load: Load,
    extents: Mapping[str, Index],
) -> bool:
    """Whether a load of a member reads what the same row makes."""
    solution = invert(stored, load.index, axes, load.buffer.shape, extents)
    return solution is not None and all(solution[row.name] == Index.var(row.name) for row in rows)
