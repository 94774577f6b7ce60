"""Solving a store index for its axes: which point of a definition makes the element at a given place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from lampwork.loops.ir.index import ZERO, FloorDiv, Index, Indirect, Mod, simplify
from lampwork.loops.ir.nodes import Axis
from lampwork.records import record


def invert(
    stored: Sequence[Index],
    place: Sequence[Index],
    axes: Sequence[Axis],
    shape: Sequence[Index],
    extents: Mapping[str, Index],
) -> dict[str, Index] | None:
    """The axes as expressions such that stored(axes) = place; None if that is not known to exist and be unique, or if
    it does not depend on an index from data in the place, which then nothing would check.

    before: stored = (i0, 64*i1 + i2), i2 < 64, place = (a, b)      after: i0 = a, i1 = b // 64, i2 = b % 64
    before: stored = (i // 4, i % 4), place = (a, b)                after: i = 4*a + b

    Args:
        stored: the store index, over `axes`.
        place: the element asked for, over other variables whose ranges are `extents`.
        shape: the shape of the buffer: along a dimension of size 1 there is only one place.
    """
    by_name = {axis.name: axis for axis in axes}
    solution: dict[str, Index] = {axis.name: ZERO for axis in axes if axis.extent.as_int() == 1}
    parts: dict[str, list[_Part]] = {}
    for expression, value, size in zip(stored, place, shape, strict=True):
        if size.as_int() == 1:
            continue
        name = expression.as_var()
        if name is not None and name in by_name and name not in solution:
            solution[name] = value
            continue
        if not expression.is_flat:
            if not _collect(expression, value, by_name, parts):
                return None
            continue
        digits = _digits(expression, by_name)
        if digits is None:
            return None
        for position, (coefficient, axis) in enumerate(digits):
            extent = axis.extent.as_int()
            if axis.name in solution and extent != 1:
                return None
            digit = value // coefficient
            if position:
                digit = digit % axis.extent
            solution[axis.name] = digit
    for name, pieces in parts.items():
        whole = _assembled(pieces, by_name[name])
        if whole is None or name in solution:
            return None
        solution[name] = whole
    if len(solution) != len(by_name):
        return None
    found = {name: simplify(value, extents) for name, value in solution.items()}
    return found if _indirects(place) <= _indirects(found.values()) else None


def _indirects(places: Iterable[Index]) -> set[Indirect]:
    return {atom for place in places if not place.is_flat for atom in place.indirects()}


@record
class _Part:
    """(axis // weight) % cover = value; cover 0: the highest part, without a remainder."""

    weight: int
    cover: int
    value: Index


def _collect(
    expression: Index, value: Index, by_name: Mapping[str, Axis], parts: dict[str, list[_Part]]
) -> bool:
    """Notes an axis // weight, axis % cover or (axis // weight) % cover; False if it is something else."""
    atom = expression.as_atom()
    weight, cover = 1, 0
    name: str | None = None
    if isinstance(atom, Mod):
        cover = atom.b.as_int() or 0
        if not cover:
            return False
        name, atom = atom.a.as_var(), atom.a.as_atom()
    if isinstance(atom, FloorDiv):
        weight, name = atom.b.as_int() or 0, atom.a.as_var()
    if name is None or name not in by_name or not weight:
        return False
    parts.setdefault(name, []).append(_Part(weight, cover, value))
    return True


def _assembled(pieces: list[_Part], axis: Axis) -> Index | None:
    """The axis from its parts, if they cover all of it."""
    expected, whole = 1, ZERO
    for part in sorted(pieces, key=lambda part: part.weight):
        if part.weight != expected:
            return None
        whole = whole + part.value * part.weight
        if not part.cover:
            # The highest part has no remainder; anything above it would have no place.
            return whole if part.weight == max(each.weight for each in pieces) else None
        expected = part.weight * part.cover
    return whole if axis.extent.as_int() == expected else None


def _digits(expression: Index, by_name: Mapping[str, Axis]) -> list[tuple[int, Axis]] | None:
    """The axes of c1*a1 + c2*a2 + … as digits of a number, highest first; None if they are not."""
    digits: list[tuple[int, Axis]] = []
    for name in expression.variables():
        axis = by_name.get(name)
        factor = expression.coefficient(name)
        coefficient = None if factor is None else factor.as_int()
        if axis is None or coefficient is None:
            return None
        if axis.extent.as_int() == 1:
            continue
        digits.append((coefficient, axis))
    digits.sort(key=lambda digit: -digit[0])
    if not digits or expression.constant or not expression.is_flat or digits[-1][0] != 1:
        return None
    for (above, _), (below, axis) in pairwise(digits):
        extent = axis.extent.as_int()
        if extent is None or below * extent != above:
            return None
    return digits
