"""Indices over symbolic sizes: their value for given sizes, and symbols replaced by other indices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from lampwork.loops.ir.polynomial import ZERO, Atom, FloorDiv, Index, Mod, Sym


class NoDivisor(ZeroDivisionError):
    """An index divides by what is 0 for some sizes. `divisor`: that index."""

    def __init__(self, divisor: Index) -> None:
        super().__init__(f"{divisor} is 0")
        self.divisor = divisor


def evaluate(index: Index, values: Mapping[str, int]) -> int:
    """The value of an index without loop variables, for these values of its symbols.

    Raises:
        KeyError: a symbol has no value.
        TypeError: the index depends on loop variables or on data.
        NoDivisor: it divides by 0.
    """
    total = 0
    for monomial, coefficient in index.terms:
        product = coefficient
        for atom in monomial:
            product *= _evaluate_atom(atom, values)
        total += product
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, Sym):
        return values[atom.name]
    if isinstance(atom, FloorDiv | Mod):
        divisor = evaluate(atom.b, values)
        if divisor == 0:
            raise NoDivisor(atom.b)
        left = evaluate(atom.a, values)
        return left // divisor if isinstance(atom, FloorDiv) else left % divisor
    raise TypeError(f"{atom} is no size")


def divisors(index: Index) -> Iterator[Index]:
    """What an index divides by that depends on symbols; those inside of others come first."""
    for monomial, _ in index.terms:
        for atom in monomial:
            if isinstance(atom, FloorDiv | Mod):
                yield from divisors(atom.a)
                yield from divisors(atom.b)
                if not atom.b.is_const:
                    yield atom.b


NO_HINTS: Mapping[str, int] = MappingProxyType({})


def likely(size: Index, hints: Mapping[str, int]) -> int | None:
    """A size, or what it is for these likely values of its symbols: to choose by, never to compute with. None: unknown.

    Sizes hold no loop variables.
    """
    known = size.as_int()
    if known is not None:
        return known
    return evaluate(size, hints) if size.symbols() <= hints.keys() else None


class Sizes:
    """The numbers that indices without loop variables are for given values of the symbols, each computed once."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = values
        self._known: dict[Index, int] = {}
        self._tuples: dict[tuple[Index, ...], tuple[int, ...]] = {}

    def number(self, index: Index) -> int:
        """Raises KeyError for a symbol without a value."""
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = evaluate(index, self.values)
        return known

    def numbers(self, indices: tuple[Index, ...]) -> tuple[int, ...]:
        known = self._tuples.get(indices)
        if known is None:
            known = self._tuples[indices] = tuple(self.number(index) for index in indices)
        return known

    def symbols(self, names: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.values[name] for name in names)


def replace_symbols(index: Index, mapping: Mapping[str, Index]) -> Index:
    """The index with symbols replaced, all at once, also inside // and %. Loop variables stay; an index taken from
    data is left as it is."""
    return index.map_atoms(lambda atom: mapping.get(atom.name) if isinstance(atom, Sym) else None)


def lower_bound(index: Index, lowest: Mapping[str, int]) -> int | None:
    """A number that the index is never below, if each symbol is at least its `lowest`; None if none is known.

    Exact for sums and products of symbols with coefficients that are not negative once every symbol is written as
    its lowest value and a rest.
    """
    shifted = ZERO
    for monomial, coefficient in index.terms:
        product = Index.const(coefficient)
        for atom in monomial:
            least = _lowest_of(atom, lowest)
            if least is None:
                return None
            product = product * (Index.of_atom(atom) + least)
        shifted = shifted + product
    if any(monomial and coefficient < 0 for monomial, coefficient in shifted.terms):
        return None
    return shifted.constant


def _lowest_of(atom: Atom, lowest: Mapping[str, int]) -> int | None:
    if isinstance(atom, Sym):
        return lowest.get(atom.name)
    if isinstance(atom, Mod):
        return 0
    if isinstance(atom, FloorDiv):
        bound, divisor = lower_bound(atom.a, lowest), atom.b.as_int()
        if divisor is not None and bound is not None:
            return bound // divisor
        return 0 if bound is not None and bound >= 0 else None
    return None
