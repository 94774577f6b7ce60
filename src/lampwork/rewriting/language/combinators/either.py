"""`either(a, b, ...)` and `maybe(op, x)`: the first of several terms that matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from lampwork.errors import PassError
from lampwork.records import record
from lampwork.rewriting.language.term import Lit, Term, call
from lampwork.rewriting.matching.match_plan import Goals, MatchPlan, Note, StepPlan

if TYPE_CHECKING:
    from lampwork.rewriting.matching.match import Search
    from lampwork.rewriting.matching.planner import Planner


@record(eq=False, repr=False)
class Either(Term):
    """The first of several terms that matches. `counts`: what `Match.count(name)` is for each."""

    options: tuple[Any, ...]
    name: str = ""
    counts: tuple[int, ...] = ()

    def children(self) -> Sequence[Any]:
        return self.options

    def plan(self, planner: Planner) -> MatchPlan:
        plans = [planner.plan(option) for option in self.options]
        notes = [Note(("count", self.name), count) for count in self.counts]

        def step(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
            ways = [(plan, value, owner, rest) for plan in plans]
            if self.name:
                ways = [
                    (plan, value, owner, (note, None, None, rest))
                    for plan, note in zip(plans, notes, strict=True)
                ]
            for way in reversed(ways[1:]):
                search.choice(way)
            return ways[0]

        return StepPlan(step, str(self))

    def alternatives(self) -> Sequence[Any] | None:
        return self.options

    def names(self) -> Iterable[str]:
        return (self.name,)

    def variants(self, of: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        for option in self.options:
            yield from of(option)

    def __str__(self) -> str:
        return " or ".join(map(str, self.options))


def either(*options: Any, name: str = "") -> Term:
    """Any of the terms, tried in this order. `match.count(name)` is the number of the one that it was, from 0.

    A variable that only other options have is None in the replacement.

    Raises:
        PassError: less than two options.
    """
    if len(options) < 2:
        raise PassError(f"either() takes two options or more, got {len(options)}")
    return Either(
        tuple(o if isinstance(o, Term) else Lit(o) for o in options), name, tuple(range(len(options)))
    )


def maybe(op: Any, x: Any, *rest: Any, name: str = "") -> Term:
    """`op(x, *rest)`, or `x` itself: an op that may be there. `op` is a function of torch, or any other of terms, or
    the name of an op. `match.has(name)` says whether it was there; `name` defaults to the op's own.

    A variable in `rest` is None in the replacement if it was not.
    """
    if isinstance(op, str):
        return Either((call(op, x, *rest), x), name or op, (1, 0))
    own = str(getattr(op, "__name__", ""))
    return Either((op(x, *rest), x), name or own, (1, 0))
