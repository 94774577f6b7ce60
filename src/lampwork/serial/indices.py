"""Indices as JSON: an int, or a list of terms [coefficient, [atom, ...]]. An atom is a symbol's name, or
["//", index, index], or ["%", index, index]."""

from __future__ import annotations

from typing import Any

from lampwork.errors import SerialError
from lampwork.loops.ir.polynomial import Atom, FloorDiv, Index, Mod, Monomial, Sym
from lampwork.serial.values import expected, items, whole

DEEPEST = 64
"""How deep divisions may nest: more than symbols.py lets them."""


def index_to_json(index: Index) -> Any:
    """Raises SerialError for an index of loop variables or data, which is no size."""
    value = index.as_int()
    if value is not None:
        return value
    return [
        [coefficient, [_atom_to_json(atom) for atom in monomial]] for monomial, coefficient in index.terms
    ]


def _atom_to_json(atom: Atom) -> Any:
    if isinstance(atom, Sym):
        return atom.name
    if isinstance(atom, FloorDiv | Mod):
        return ["//" if isinstance(atom, FloorDiv) else "%", index_to_json(atom.a), index_to_json(atom.b)]
    raise SerialError(f"the index {atom} is no size, and has no serial form")


def index_from_json(value: Any, depth: int = 0) -> Index:
    if type(value) is int:
        return Index.const(whole(value))
    if depth > DEEPEST:
        raise expected(f"an index that is no deeper than {DEEPEST}", value)
    terms: list[tuple[Monomial, int]] = []
    for term in items(value):
        coefficient, atoms = items(term, 2)
        terms.append((tuple(_atom_from_json(atom, depth) for atom in items(atoms)), whole(coefficient)))
    found = Index.from_terms((monomial, coefficient) for monomial, coefficient in terms)
    # Indices are compared by their terms, so only what is written as an index is one.
    if found.terms != tuple(terms) or found.is_const:
        raise expected("an index in its simplest form", value)
    return found


def _atom_from_json(value: Any, depth: int) -> Atom:
    if type(value) is str:
        return Sym(symbol_from_json(value))
    kind, a, b = items(value, 3)
    if kind not in ("//", "%"):
        raise expected('"//" or "%"', kind)
    divisor = index_from_json(b, depth + 1)
    if (number := divisor.as_int()) is not None and number <= 0:
        raise expected("a divisor above 0", b)
    return (FloorDiv if kind == "//" else Mod)(index_from_json(a, depth + 1), divisor)


def symbol_from_json(value: Any) -> str:
    if type(value) is not str or not value.isidentifier() or not value.isascii():
        raise expected("the name of a symbol", value)
    return value
