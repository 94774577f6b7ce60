"""Index expressions: the polynomial `Index` (polynomial.py), and what needs the ranges of the loop variables.

`extents` maps loop variables to their extents: a variable runs over 0 <= var < extent. Extents may be symbolic;
symbolic sizes are at least 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from lampwork.loops.ir.polynomial import (
    ONE,
    ZERO,
    Atom,
    FloorDiv,
    Index,
    Indirect,
    Mod,
    Monomial,
    Sym,
    Var,
    as_index,
)
from lampwork.standard import functools

__all__ = [
    "ONE",
    "ZERO",
    "Atom",
    "FloorDiv",
    "Index",
    "Indirect",
    "Mod",
    "Monomial",
    "Sym",
    "Var",
    "as_index",
    "bounds",
    "indirects_of",
    "is_nonnegative",
    "simplify",
]


def indirects_of(indices: Iterable[Index]) -> set[Indirect]:
    """The places taken from data that these depend on, each of which has to be checked."""
    return {indirect for index in indices for indirect in index.indirects()}


def is_nonnegative(index: Index) -> bool:
    """Whether a polynomial over symbolic sizes is >= 0 for all sizes >= 1. False also means "not known"."""
    value = index.as_int()
    if value is not None:
        return value >= 0
    # With s = 1 + t, t >= 0: nonnegative coefficients are enough.
    shifted = ZERO
    for monomial, coefficient in index.terms:
        product = Index.const(coefficient)
        for atom in monomial:
            if isinstance(atom, Sym):
                product = product * (Index.of_atom(atom) + 1)
            elif isinstance(atom, FloorDiv) and is_nonnegative(atom.a):
                product = product * Index.of_atom(atom)
            else:
                return False
        shifted = shifted + product
    return all(coefficient >= 0 for _, coefficient in shifted.terms)


def bounds(index: Index, extents: Mapping[str, Index]) -> tuple[Index, Index] | None:
    """(lowest, highest) value over the ranges of the variables, as polynomials of symbolic sizes; None if not known.

    The interval encloses all values; it is exact for polynomials that use each variable once.
    """
    low, high = ZERO, ZERO
    for monomial, coefficient in index.terms:
        term = _monomial_bounds(monomial, extents)
        if term is None:
            return None
        first, last = term
        if coefficient < 0:
            first, last = last, first
        low = low + first * coefficient
        high = high + last * coefficient
    return low, high


def simplify(index: Index, extents: Mapping[str, Index]) -> Index:
    """An equal, simpler index, given the ranges of its variables.

    before: (64*i + j) // 64, with j < 64        after: i
    before: 64 * (x // 64) + x % 64              after: x
    before: (8*i + j) % 16, with j < 8           after: 8 * (i % 2) + j
    """
    if index.is_flat:
        return index
    if index.indirects():
        return _simplified(index, extents)
    return _remembered(index, tuple((name, extents.get(name)) for name in sorted(index.variables())))


@functools.lru_cache(maxsize=2048)
def _remembered(index: Index, extents: tuple[tuple[str, Index | None], ...]) -> Index:
    """The layers of a network ask the same of the same indices, by the hundred, at each step of their compilation."""
    return _simplified(index, {name: extent for name, extent in extents if extent is not None})


def _simplified(index: Index, extents: Mapping[str, Index]) -> Index:
    result = ZERO
    for monomial, coefficient in index.terms:
        product = Index.const(coefficient)
        for atom in monomial:
            product = product * _simplify_atom(atom, extents)
        result = result + product
    return _recombine(result, extents)


def _monomial_bounds(monomial: Monomial, extents: Mapping[str, Index]) -> tuple[Index, Index] | None:
    low, high = ONE, ONE
    for atom in monomial:
        interval = _atom_bounds(atom, extents)
        if interval is None:
            return None
        first, last = interval
        if len(monomial) > 1 and not is_nonnegative(first):
            return None
        low, high = low * first, high * last
    return low, high


def _atom_bounds(atom: Atom, extents: Mapping[str, Index]) -> tuple[Index, Index] | None:
    if isinstance(atom, Var):
        extent = extents.get(atom.name)
        return None if extent is None else (ZERO, extent - 1)
    if isinstance(atom, Sym):
        size = Index.of_atom(atom)
        return size, size
    if isinstance(atom, Indirect):
        return ZERO, atom.size - 1
    if not atom.a.variables() and not atom.b.variables() and not atom.a.indirects():
        return Index.of_atom(atom), Index.of_atom(atom)
    inside = bounds(atom.a, extents)
    if isinstance(atom, Mod):
        if inside is not None and is_nonnegative(inside[0]) and is_nonnegative(atom.b - 1 - inside[1]):
            return inside
        return (ZERO, atom.b - 1) if not atom.b.variables() else None
    if inside is None or not is_nonnegative(inside[0]):
        return _constant_quotient(inside, atom.b)
    if atom.b.variables():
        return ZERO, inside[1]
    first, last = inside[0].as_int(), inside[1].as_int()
    divisor = atom.b.as_int()
    if first is not None and last is not None and divisor is not None:
        return Index.const(first // divisor), Index.const(last // divisor)
    above = _exact_quotient(inside[1] + 1, atom.b)
    if above is not None:
        return ZERO, above - 1
    return ZERO, inside[1] // atom.b


def _exact_quotient(whole: Index, divisor: Index) -> Index | None:
    """The polynomial that gives `whole` when multiplied by `divisor`, found by long division; None if there is none.

    before: s0*s1 + 2*s0, s1 + 2        after: s0
    """
    quotient = ZERO
    leading, scale = max(divisor.terms, key=_rank)
    for _ in range(len(whole.terms) + 1):
        if not whole.terms:
            return quotient
        monomial, coefficient = max(whole.terms, key=_rank)
        rest = list(monomial)
        for atom in leading:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % scale:
            return None
        term = Index(((tuple(rest), coefficient // scale),))
        quotient = quotient + term
        whole = whole - term * divisor
    return None if whole.terms else quotient


def _rank(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    """An order of terms, highest degree last."""
    return len(term[0]), [str(atom) for atom in term[0]]


def _constant_quotient(inside: tuple[Index, Index] | None, divisor: Index) -> tuple[Index, Index] | None:
    if inside is None:
        return None
    first, last, by = inside[0].as_int(), inside[1].as_int(), divisor.as_int()
    if first is None or last is None or by is None:
        return None
    return Index.const(first // by), Index.const(last // by)


def _simplify_atom(atom: Atom, extents: Mapping[str, Index]) -> Index:
    if isinstance(atom, FloorDiv):
        return _simplify_division(simplify(atom.a, extents), simplify(atom.b, extents), extents, modulo=False)
    if isinstance(atom, Mod):
        return _simplify_division(simplify(atom.a, extents), simplify(atom.b, extents), extents, modulo=True)
    return Index.of_atom(atom)


def _simplify_division(a: Index, b: Index, extents: Mapping[str, Index], *, modulo: bool) -> Index:
    """a // b or a % b. The operators first, then what is left of them by ranges."""
    whole = a % b if modulo else a // b
    result = ZERO
    for monomial, coefficient in whole.terms:
        product = Index.const(coefficient)
        for atom in monomial:
            product = product * _reduce_atom(atom, extents)
        result = result + product
    return result


def _reduce_atom(atom: Atom, extents: Mapping[str, Index]) -> Index:
    """One // or %, whose operands are simple, by ranges."""
    if not isinstance(atom, FloorDiv | Mod):
        return Index.of_atom(atom)
    modulo = isinstance(atom, Mod)
    interval = bounds(atom.a, extents)
    if interval is not None:
        first, last = interval
        if is_nonnegative(first) and is_nonnegative(atom.b - 1 - last):
            return atom.a if modulo else ZERO
    divisor = atom.b.as_int()
    if divisor is None:
        return Index.of_atom(atom)
    if interval is not None:
        start, end = interval[0].as_int(), interval[1].as_int()
        if start is not None and end is not None and start // divisor == end // divisor:
            return atom.a - (start // divisor) * divisor if modulo else Index.const(start // divisor)
    for factor in _common_factors(atom.a, divisor):
        upper, lower = _split_by_factor(atom.a, factor)
        interval = bounds(lower, extents)
        if interval is None:
            continue
        if is_nonnegative(interval[0]) and is_nonnegative(Index.const(factor - 1) - interval[1]):
            # (g*x + r) // (g*c) = x // c and (g*x + r) % (g*c) = g * (x % c) + r, for 0 <= r < g
            inner = _simplify_division(upper, Index.const(divisor // factor), extents, modulo=modulo)
            return inner * factor + lower if modulo else inner
    return Index.of_atom(atom)


def _common_factors(index: Index, divisor: int) -> list[int]:
    """Factors above 1 that some but not all terms share with the divisor, largest first."""
    factors = {gcd(coefficient, divisor) for monomial, coefficient in index.terms if monomial}
    return sorted((factor for factor in factors if factor > 1), reverse=True)


def _split_by_factor(index: Index, factor: int) -> tuple[Index, Index]:
    """index = factor * upper + lower; lower holds the terms that factor does not divide."""
    upper: list[tuple[Monomial, int]] = []
    lower: list[tuple[Monomial, int]] = []
    for monomial, coefficient in index.terms:
        quotient, rest = divmod(coefficient, factor)
        if not monomial:
            upper.append((monomial, quotient))
            lower.append((monomial, rest))
        elif rest == 0:
            upper.append((monomial, quotient))
        else:
            lower.append((monomial, coefficient))
    return Index.from_terms(upper), Index.from_terms(lower)


def _recombine(index: Index, extents: Mapping[str, Index]) -> Index:
    """k*b*(x // b) + k*(x % b) -> k*x, until nothing changes."""
    changed = True
    while changed:
        changed = False
        for monomial, coefficient in index.terms:
            for position, atom in enumerate(monomial):
                if not isinstance(atom, Mod):
                    continue
                others = monomial[:position] + monomial[position + 1 :]
                rest = Index(((others, coefficient),))
                quotient = _simplify_division(atom.a, atom.b, extents, modulo=False)
                partner = quotient * rest * atom.b
                have = dict(index.terms)
                if not partner.terms or any(have.get(m) != c for m, c in partner.terms):
                    continue
                whole = index - partner - Index(((monomial, coefficient),)) + atom.a * rest
                if whole != index:
                    index = whole if whole.is_flat else simplify(whole, extents)
                    changed = True
                    break
            if changed:
                break
    return index
