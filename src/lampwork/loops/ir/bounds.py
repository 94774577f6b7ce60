"""Proofs that an access stays in its buffer, from the ranges of loop variables and from what masks say of them.

    x[i - 2] where 2 <= i < 10, of a buffer of 8 elements       0 <= i - 2 and i - 2 <= 7: proven
    x[i - 2] without the mask                                   not proven: generated code has to check

A proof holds for all values of the symbols, which are at least 1. "Not proven" says nothing: the access may be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lampwork.loops.ir.index import (
    ONE,
    ZERO,
    Atom,
    FloorDiv,
    Index,
    Indirect,
    Mod,
    Sym,
    Var,
    bounds,
    is_nonnegative,
    simplify,
)
from lampwork.loops.ir.nodes import Buffer, Const, Expr, IndexValue, Op
from lampwork.loops.ir.polynomial import Monomial
from lampwork.standard import functools

_DEPTH = 4  # facts that one proof combines at most
_TRIES = 60  # combinations that it tries
_DIGITS = 4  # variables that are written in digits for one

Facts = tuple[Index, ...]
"""Indices that are known to be at least 0."""


def elements_of(buffer: Buffer) -> Index:
    """Elements from the first to past the last of a buffer; 0 of an empty one."""
    if any(size.as_int() == 0 for size in buffer.shape):
        return ZERO
    elements = ONE
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        elements = elements + (size - 1) * stride
    return elements


def offset_in(buffer: Buffer, index: Sequence[Index]) -> Index:
    """Where buffer[index] lies, in elements from the start."""
    if len(index) == 1 and buffer.strides[0] == ONE:
        return index[0]
    offset = ZERO
    for position, stride in zip(index, buffer.strides, strict=True):
        offset = offset + position * stride
    return offset


def stays_inside(
    buffer: Buffer, index: Sequence[Index], extents: Mapping[str, Index], mask: Expr | None, known: Facts = ()
) -> bool:
    """Whether buffer[index] is proven to lie in the buffer wherever `mask` holds.

    Args:
        extents: of all loop variables in force: 0 <= variable < extent.
        known: what else is known of them.
    """
    offset, elements = offset_in(buffer, index), elements_of(buffer)
    reached, size = _numbers_of(offset, extents), elements.as_int()
    if reached is not None and size is not None and reached[0] >= 0 and reached[1] < size:
        return True
    last = elements - 1 - offset
    facts = known if mask is None else (*known, *facts_of(mask))
    if is_proven(offset, extents, facts) and is_proven(last, extents, facts):
        return True
    if not facts:
        return False
    (offset, last, *more), digits = _in_digits((offset, last, *facts), extents)
    return digits is not None and is_proven(offset, digits, (*more,)) and is_proven(last, digits, (*more,))


def _in_digits(
    indices: Sequence[Index], extents: Mapping[str, Index]
) -> tuple[list[Index], Mapping[str, Index] | None]:
    """The indices over the digits of variables that some of them divide, and the extents with those of the digits;
    None for the extents where nothing is divided. Facts of v % m are facts of v only where v is written in digits.

    before: 64*p - 65 + 64*i, p % 64 + i - 1      after: 4096*ph + 64*pl - 65 + 64*i, pl + i - 1
    """
    found, ranges = list(indices), dict(extents)
    for _ in range(_DIGITS):
        divided = _divided(found, ranges)
        if divided is None:
            break
        name, by = divided
        high, low = f"{name}.h", f"{name}.l"
        whole = Index.var(high) * by + Index.var(low)
        ranges |= {high: (ranges[name] + (by - 1)) // by, low: Index.const(by)}
        found = [simplify(index.substitute({name: whole}), ranges) for index in found]
        found.append(ranges[name] - 1 - whole)
    return found, ranges if len(ranges) > len(extents) else None


def _divided(indices: Sequence[Index], extents: Mapping[str, Index]) -> tuple[str, int] | None:
    """A variable that some index divides by a number, and the least such number."""
    found = [
        (atom.b.as_int() or 0, atom.a.as_var())
        for index in indices
        for atom in index.atoms()
        if isinstance(atom, FloorDiv | Mod)
    ]
    known = [(by, name) for by, name in found if by > 1 and name is not None and name in extents]
    return None if not known else (min(known)[1], min(known)[0])


def is_proven(index: Index, extents: Mapping[str, Index], facts: Facts = ()) -> bool:
    """Whether an index is proven to be at least 0."""
    values = _numbers_of(index, extents)
    if values is not None and values[0] >= 0:
        return True
    if any(each.indirects() for each in (index, *facts)):
        return _is_proven(index, extents, facts)
    return _remembered(index, tuple(extents.items()), facts)


@functools.lru_cache(maxsize=2048)
def _remembered(index: Index, extents: tuple[tuple[str, Index], ...], facts: Facts) -> bool:
    """Equal layers ask for the same proofs, at more than one step of their compilation."""
    return _is_proven(index, dict(extents), facts)


def _is_proven(index: Index, extents: Mapping[str, Index], facts: Facts) -> bool:
    if _is_bounded_below(index, extents):
        return True
    facts = tuple(_with_divisions(index, extents, facts))
    return bool(facts) and _combines(index, extents, facts, _DEPTH, set())


def facts_of(mask: Expr) -> Facts:
    """What holds where a mask does: the comparisons of indices that it is a conjunction of."""
    if not isinstance(mask, Op):
        return ()
    if mask.name == "and":
        return (*facts_of(mask.args[0]), *facts_of(mask.args[1]))
    if mask.name not in ("lt", "le", "gt", "ge", "eq"):
        return ()
    left, right = _number(mask.args[0]), _number(mask.args[1])
    if left is None or right is None:
        return ()
    below, above = right - left, left - right
    return {
        "lt": (below - 1,),
        "le": (below,),
        "gt": (above - 1,),
        "ge": (above,),
        "eq": (below, above),
    }[mask.name]


def _number(expr: Expr) -> Index | None:
    """The index that an operand of a comparison of i64 is."""
    if expr.dtype != "i64":
        return None
    if isinstance(expr, IndexValue):
        return expr.index
    if isinstance(expr, Op) and expr.name in ("add", "sub"):
        left, right = _number(expr.args[0]), _number(expr.args[1])
        if left is None or right is None or not _is_far_from_overflow(left, right):
            return None
        return left + right if expr.name == "add" else left - right
    return Index.const(expr.value) if isinstance(expr, Const) and isinstance(expr.value, int) else None


def _is_far_from_overflow(*operands: Index) -> bool:
    """Places in memory are; a number from the program may not be."""
    return all(abs(operand.constant) < 1 << 48 for operand in operands)


def _numbers_of(index: Index, extents: Mapping[str, Index]) -> tuple[int, int] | None:
    """The lowest and highest value, where all sizes are numbers."""
    low = high = 0
    for monomial, coefficient in index.terms:
        first = last = coefficient
        for atom in monomial:
            values = _numbers_of_atom(atom, extents)
            if values is None or (values[0] < 0 and len(monomial) > 1):
                return None
            first, last = first * values[0], last * values[1]
            if first > last:
                first, last = last, first
        low, high = low + first, high + last
    return low, high


def _numbers_of_atom(atom: Atom, extents: Mapping[str, Index]) -> tuple[int, int] | None:
    if isinstance(atom, Var):
        extent = extents.get(atom.name)
        size = None if extent is None else extent.as_int()
        return None if size is None or size < 1 else (0, size - 1)
    if isinstance(atom, Sym):
        return None
    if isinstance(atom, Indirect):
        size = atom.size.as_int()
        return None if size is None or size < 1 else (0, size - 1)
    by, inside = atom.b.as_int(), _numbers_of(atom.a, extents)
    if by is None or inside is None:
        return None
    if isinstance(atom, FloorDiv):
        return inside[0] // by, inside[1] // by
    return inside if inside[0] >= 0 and inside[1] < by else (0, by - 1)


def _is_bounded_below(index: Index, extents: Mapping[str, Index]) -> bool:
    values = _numbers_of(index, extents)
    if values is not None:
        return values[0] >= 0
    factors: dict[Atom, Index] = {}
    low = ZERO
    for monomial, coefficient in index.terms:
        moving = [atom for atom in monomial if _moves(atom)]
        rest = Index(((tuple(atom for atom in monomial if not _moves(atom)), coefficient),))
        if not moving:
            low = low + rest
        elif len(moving) == 1:
            factors[moving[0]] = factors.get(moving[0], ZERO) + rest
        else:
            return False
    for atom, factor in factors.items():
        interval = bounds(Index.of_atom(atom), extents) if _has_values(atom) else None
        if interval is None:
            return False
        if is_nonnegative(factor):
            low = low + interval[0] * factor
        elif is_nonnegative(-factor):
            low = low + interval[1] * factor
        else:
            return False
    return is_nonnegative(low)


def _moves(atom: Atom) -> bool:
    """Whether the atom is more than a size."""
    if isinstance(atom, FloorDiv | Mod):
        return any(_moves(each) for each in (*atom.a.atoms(), *atom.b.atoms()))
    return not isinstance(atom, Sym)


def _has_values(atom: Atom) -> bool:
    """Whether the range that `bounds` takes for an index from data, 0 to its size - 1, has any values."""
    if isinstance(atom, Indirect):
        return is_nonnegative(atom.size - 1)
    if isinstance(atom, FloorDiv | Mod):
        return all(map(_has_values, (*atom.a.atoms(), *atom.b.atoms())))
    return True


def _with_divisions(index: Index, extents: Mapping[str, Index], facts: Facts) -> Iterator[Index]:
    """The facts, and for each a // b and a % b of the index what the facts say of a."""
    yield from facts
    for atom in dict.fromkeys(index.atoms()):
        if not isinstance(atom, FloorDiv | Mod):
            continue
        by = atom.b.as_int()
        if by is None or by < 1 or not _combines(atom.a, extents, facts, _DEPTH, set()):
            continue
        yield Index.of_atom(atom)
        lowest = -(_highest(-atom.a, extents, facts) or 0)
        if isinstance(atom, FloorDiv) and lowest > 0:
            yield Index.of_atom(atom) - lowest // by
        highest = _highest(atom.a, extents, facts)
        if isinstance(atom, Mod):
            yield Index.const(by - 1) - Index.of_atom(atom)
            if highest is not None and highest < by:
                yield from (Index.of_atom(atom) - atom.a, atom.a - Index.of_atom(atom))
            continue
        yield atom.a - Index.of_atom(atom) * by
        if highest is not None:
            yield Index.const(highest // by) - Index.of_atom(atom)


def _highest(index: Index, extents: Mapping[str, Index], facts: Facts) -> int | None:
    """A number that the index is proven not to exceed, the least that one fact gives; None if none is found."""
    found: list[int] = []
    for fact in (ZERO, *facts):
        interval = bounds(index + fact, extents)
        highest = None if interval is None else interval[1].as_int()
        if highest is not None:
            found.append(highest)
    return min(found, default=None)


def _combines(
    index: Index, extents: Mapping[str, Index], facts: Facts, depth: int, tried: set[Index]
) -> bool:
    """Whether the index is at least 0 on its own, or less a positive multiple of some facts."""
    if _is_bounded_below(index, extents):
        return True
    if depth == 0 or index in tried or len(tried) > _TRIES:
        return False
    tried.add(index)
    for fact in facts:
        for rest in _without_a_term(index, fact):
            if _combines(rest, extents, facts, depth - 1, tried):
                return True
    return False


def _without_a_term(index: Index, fact: Index) -> Iterator[Index]:
    """index * n - fact * p, for positive p and n such that a term that both have vanishes.

    before: (i - 2)*s + j, i - 2      after: j, with p = s
    """
    for monomial, scale in fact.terms:
        if not monomial:
            continue
        for other, coefficient in index.terms:
            if (coefficient > 0) != (scale > 0):
                continue
            factor = _quotient(other, monomial)
            if factor is not None:
                yield index * abs(scale) - fact * factor * abs(coefficient)


def _quotient(whole: Monomial, part: Monomial) -> Index | None:
    """What `part` has to be multiplied by to give `whole`, if it is a product of sizes."""
    rest = list(whole)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    quotient = ONE
    for atom in rest:
        quotient = quotient * Index.of_atom(atom)
    return quotient if is_nonnegative(quotient) else None
