"""Indices over symbols as JSON: an int, or a list of terms `[[coefficient, [atom, ...]], ...]`."""

from __future__ import annotations

from typing import Any

from lampwork.artifacts.checked import Place
from lampwork.loops.ir.polynomial import FloorDiv, Index, Mod, Sym

_DEEPEST = 32


def index_to_json(index: Index) -> Any:
    """An index over symbols alone."""
    value = index.as_int()
    if value is not None:
        return value
    return [[coefficient, [_atom(atom) for atom in atoms]] for atoms, coefficient in index.terms]


def _atom(atom: Any) -> Any:
    if isinstance(atom, Sym):
        return atom.name
    assert isinstance(atom, FloorDiv | Mod), atom
    return ["//" if isinstance(atom, FloorDiv) else "%", index_to_json(atom.a), index_to_json(atom.b)]


def index_from_json(place: Place, depth: int = 0) -> Index:
    """
    Raises:
        ArtifactError: it is no index.
    """
    if isinstance(place.value, int):
        return Index.const(place.number(at_least=None))
    if depth > _DEEPEST:
        raise place.wrong(f"at most {_DEEPEST} divisions in one another")
    total = Index.const(0)
    for term in place:
        parts = list(term)
        if len(parts) != 2:
            raise term.wrong("a coefficient and a list of atoms")
        product = Index.const(parts[0].number(at_least=None))
        for atom in parts[1]:
            product = product * _atom_from_json(atom, depth)
        total = total + product
    return total


def _atom_from_json(place: Place, depth: int) -> Index:
    if isinstance(place.value, str):
        if not place.value.isidentifier():
            raise place.wrong("the name of a symbol")
        return Index.sym(place.value)
    parts = list(place)
    if len(parts) != 3:
        raise place.wrong("a symbol, or an operator and two indices")
    operator = parts[0].one_of("//", "%")
    a, b = (index_from_json(part, depth + 1) for part in parts[1:])
    if b.as_int() is not None and b.constant <= 0:
        raise parts[2].wrong("a divisor above 0")
    return a // b if operator == "//" else a % b
