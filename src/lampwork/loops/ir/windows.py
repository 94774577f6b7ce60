"""How the A of a product with digits is read: where each row lies at each tap, and which taps lie in the padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lampwork.loops.ir.bounds import facts_of, is_proven, offset_in, stays_inside
from lampwork.loops.ir.index import ONE, ZERO, FloorDiv, Index, is_nonnegative, simplify
from lampwork.loops.ir.nodes import Axis, Load
from lampwork.records import record

LONGEST_RUN = 1 << 13
"""Of the last digit of k, where A has a mask: templates have so many zeros to read in the padding."""


@record
class Place:
    """A condition on where a tap lies: 0 <= index <= last; `index` is over the digits of m and k."""

    index: Index
    last: Index


def windows(
    a: Load, batch: tuple[Axis, ...], rows: tuple[Axis, ...], depth: tuple[Axis, ...]
) -> tuple[Index, tuple[Place, ...]] | None:
    """(the flat offset of `a`, the conditions of its mask). None if templates cannot read it: one of them is not affine
    in the digits, the last digit of k does not run along memory, or an access is not proven to stay in the buffer."""
    axes = (*batch, *rows, *depth)
    extents = {axis.name: axis.extent for axis in axes}
    offset = simplify(offset_in(a.buffer, a.index), extents)
    names = [axis.name for axis in axes]
    if offset.indirects() or offset.coefficient(depth[-1].name) != ONE:
        return None
    if any(offset.coefficient(name) is None for name in names):
        return None
    places = places_of(a, names)
    if places is None or not is_read_inside(a, rows, extents):
        return None
    run = depth[-1].extent.as_int()
    if places and (run is None or run > LONGEST_RUN):
        return None
    return offset, places


def is_read_inside(a: Load, rows: tuple[Axis, ...], extents: Mapping[str, Index]) -> bool:
    """Whether `a` is proven to be read inside of its buffer: as a whole, or along each dimension."""
    known = tuple(_remainders(rows))
    if stays_inside(a.buffer, a.index, extents, a.mask, known):
        return True
    facts = known if a.mask is None else (*known, *facts_of(a.mask))
    return all(
        is_proven(position, extents, facts) and is_proven(size - 1 - position, extents, facts)
        for position, size in zip(a.index, a.buffer.shape, strict=True)
    )


def _remainders(rows: tuple[Axis, ...]) -> Iterator[Index]:
    """What is at least 0 where the number of rows is a quotient: the last window ends inside of its input.

    before: r < (s + 1) // 2        after: s + 1 - 2*((s + 1) // 2)
    """
    for axis in rows:
        for atom in axis.extent.atoms():
            if isinstance(atom, FloorDiv) and is_nonnegative(atom.b):
                yield atom.a - atom.b * Index.of_atom(atom)


def places_of(a: Load, names: list[str]) -> tuple[Place, ...] | None:
    """The mask of A as places with a lower and an upper end; None if it is anything else."""
    if a.mask is None:
        return ()
    if a.other != 0:
        return None
    facts = list(dict.fromkeys(facts_of(a.mask)))
    found: list[Place] = []
    while facts:
        low = facts.pop(0)
        high = next((each for each in facts if not (each + low).variables()), None)
        if high is None:
            return None
        facts.remove(high)
        # Of the two ends, the place is the one that grows.
        index = low if _grows(low, names) else high
        if any(index.coefficient(name) is None for name in names):
            return None
        found.append(Place(index, low + high))
    return tuple(found)


def _grows(index: Index, names: list[str]) -> bool:
    factors = [index.coefficient(name) or ZERO for name in names]
    return all((factor.as_int() or 0) >= 0 for factor in factors)
