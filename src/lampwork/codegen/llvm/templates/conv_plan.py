"""What is known about a convolution before a line of it is emitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lampwork.codegen.llvm.templates.epilogue import flattened
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import facts_of, is_proven, offset_in, stays_inside
from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import ONE, ZERO, FloorDiv, Index, is_nonnegative, simplify
from lampwork.loops.ir.nodes import Axis, Buffer, Gemm, Load
from lampwork.records import record

MOST_CHANNELS = 1 << 13
"""The longest run of k that rows in the padding read zeros for."""


@record
class Place:
    """A condition on where a tap lies: 0 <= index <= last; `index` is over the digits of m and k."""

    index: Index
    last: Index


@record
class ConvPlan:
    """What is known about a convolution: `a`, the flat offset of A over batch and digits, and what its mask asks. The
    gemm is `flattened`."""

    gemm: Gemm
    a: Index
    places: tuple[Place, ...]
    params: tuple[Buffer, ...]

    def of_depth(self, index: Index) -> Index:
        """The part of an index that depends on digits of k."""
        return _part(index, self.gemm.depth)

    def of_rows(self, index: Index) -> Index:
        """The rest of it."""
        return index - _part(index, self.gemm.depth)


def _part(index: Index, axes: tuple[Axis, ...]) -> Index:
    names = {axis.name for axis in axes}
    terms = tuple(
        (monomial, coefficient)
        for monomial, coefficient in index.terms
        if Index(((monomial, 1),)).variables() & names
    )
    return Index(terms)


def _has_sizes(gemm: Gemm, target: Target) -> bool:
    """Whether it has digits, a dtype of the templates, and elements."""
    dtype = gemm.a.buffer.dtype
    if dtype not in target.products or gemm.b.buffer.dtype != dtype or not gemm.depth or not gemm.rows:
        return False
    return all(axis.extent.as_int() != 0 for axis in (*gemm.batch, gemm.m, gemm.n, gemm.k))


def plan_conv(gemm: Gemm, target: Target) -> ConvPlan:
    """The plan of a convolution that is supported and whose B is packed.

    Raises CodegenError for others.
    """
    found = _analysed(gemm) if _has_sizes(gemm, target) and gemm.packed else None
    if found is None:
        raise CodegenError(f"no template for the convolution {gemm.out.name!r} of {gemm.a.buffer.dtype}")
    seen: dict[str, Buffer] = {gemm.a.buffer.name: gemm.a.buffer, gemm.b.buffer.name: gemm.b.buffer}
    for load in loads(gemm.value):
        seen.setdefault(load.buffer.name, load.buffer)
    seen.setdefault(gemm.out.name, gemm.out)
    return ConvPlan(flattened(gemm), *found, tuple(seen.values()))


def _analysed(gemm: Gemm) -> tuple[Index, tuple[Place, ...]] | None:
    """(the flat offset of A, the conditions of its mask), if both are affine in the digits."""
    extents = {axis.name: axis.extent for axis in gemm.a_axes}
    offset = simplify(offset_in(gemm.a.buffer, gemm.a.index), extents)
    names = [axis.name for axis in gemm.a_axes]
    if offset.indirects() or offset.coefficient(gemm.depth[-1].name) != ONE:
        return None
    if any(offset.coefficient(name) is None for name in names):
        return None
    places = _places(gemm.a, names)
    if places is None or not _stays_inside(gemm, extents):
        return None
    channels = gemm.depth[-1].extent.as_int()
    if places and (channels is None or channels > MOST_CHANNELS):
        return None
    return offset, places


def _stays_inside(gemm: Gemm, extents: Mapping[str, Index]) -> bool:
    """Whether A is proven to be read inside of its buffer: as a whole, or along each dimension."""
    a, known = gemm.a, tuple(_remainders(gemm.rows))
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


def _places(a: Load, names: list[str]) -> tuple[Place, ...] | None:
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
