"""Walking the terms of a pattern: what is in it, and whether it says anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from lampwork.errors import PassError
from lampwork.rewriting.language.term import Call, Rest, RestArgument, Size, Sizes, Term, Var, fits_all


def check_pattern(pattern: Any) -> None:
    """Whether there is something to look for.

    Raises:
        PassError: a variable alone, an output that has nothing in common with those before it, sizes of calls.
    """
    terms: list[Any] = list(cast("Any", pattern)) if isinstance(pattern, tuple) else [pattern]
    known: set[Any] = set()
    for i, term in enumerate(terms):
        if fits_all(term):
            raise PassError(
                "the pattern matches any value",
                fix="leave out what is a variable alone in one of its options",
            )
        parts = set(parts_of(term))
        if i and not parts & known:
            raise PassError(
                f"output {i} of a pattern has nothing in common with those before it",
                fix="let it use a variable of theirs, or return it first",
            )
        known |= parts
    for term in _all(terms):
        if isinstance(term, Size | Sizes) and not isinstance(term.of, Var):
            raise PassError(
                "a pattern takes the sizes of its variables only",
                fix="leave the size open: -1 in a shape is any size",
            )
        if isinstance(term, Rest):
            raise PassError(
                f"the rest of the arguments, {term}, is not the last argument of a call",
                fix="write it behind the arguments of a call, as in torch.conv2d(x, w, options)",
            )


def children(term: Any) -> Sequence[Any]:
    """The terms directly below a term, or those of a list."""
    if isinstance(term, Term):
        return term.children()
    return cast("Sequence[Any]", term) if isinstance(term, list | tuple) else ()


def names_of(pattern: Any) -> set[str]:
    """What a match knows by name: variables, paths, counts and sizes."""
    return {name for term in _all([pattern]) if isinstance(term, Term) for name in term.names()} - {""}


def rests_of(pattern: Any) -> set[str]:
    """What a pattern calls the rest of the arguments of its calls."""
    return {term.rest.name for call in calls_of(pattern) for term in rest_of(call)}


def rest_of(call: Call) -> Iterator[RestArgument]:
    """The arguments of a call that its named rest stands for, of all its overloads."""
    return (v for row in call.values.values() for v in row if isinstance(v, RestArgument))


def calls_of(pattern: Any) -> Iterator[Call]:
    """The calls of a pattern, each once."""
    return (term for term in _all([pattern]) if isinstance(term, Call))


def parts_of(term: Any) -> Iterator[Any]:
    """The names of the variables of a term, and its calls, in the order written."""
    for part in _all([term]):
        if isinstance(part, Call) or (isinstance(part, Var) and part.name):
            yield part if isinstance(part, Call) else part.name


def shared_calls(terms: Sequence[Any]) -> frozenset[Call]:
    """The calls that stand in several places of a pattern."""
    counts: dict[Call, int] = {}
    for term in terms:
        if isinstance(term, Call):
            counts[term] = counts.get(term, 0) + 1
    for term in _all(terms):
        for below in _calls_below(term):
            counts[below] = counts.get(below, 0) + 1
    return frozenset(c for c, n in counts.items() if n > 1)


def depth_of(term: Any) -> int:
    """How many ops a term is deep, where it repeats or sees through others a few more."""
    known: dict[Call, int] = {}

    def depth(t: Any) -> int:
        if isinstance(t, Call) and t in known:
            return known[t]
        found = max(map(depth, children(t)), default=0) + (t.depth if isinstance(t, Term) else 0)
        if isinstance(t, Call):
            known[t] = found
        return found

    return depth(term)


def _calls_below(term: Any) -> Iterator[Call]:
    """The calls directly below a term, also in a list."""
    for t in children(term):
        if isinstance(t, Call):
            yield t
        elif isinstance(t, list | tuple):
            yield from _calls_below(t)


def _all(terms: Sequence[Any]) -> Iterator[Any]:
    """The terms and all below them, each call once."""
    seen: set[Call] = set()
    work: list[Any] = list(reversed(terms))
    while work:
        term = work.pop()
        if isinstance(term, Call):
            if term in seen:
                continue
            seen.add(term)
        yield term
        work.extend(reversed(list(children(term))))
