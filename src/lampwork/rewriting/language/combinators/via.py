"""`scaled(x, c)`, and what else is a value after a conversion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from lampwork.records import record
from lampwork.rewriting.language.combinators.either import Either
from lampwork.rewriting.language.term import Term, call
from lampwork.rewriting.matching.match_plan import FAILED, Goals, MatchPlan, StepPlan
from lampwork.rewriting.matching.values import number_of

if TYPE_CHECKING:
    from lampwork.rewriting.matching.match import Search
    from lampwork.rewriting.matching.planner import Planner

MISS: Any = object()
"""What a conversion gives for a value that it does not know."""

Convert = Callable[[Any, fx.Node | None], Any]
"""(value, the node whose argument it is) -> what stands for the value, or MISS."""


@record(eq=False, repr=False)
class Via(Term):
    """A value that, converted, is `inner`. `what` says what it is, for messages."""

    convert: Convert
    inner: Any
    what: str

    def children(self) -> Sequence[Any]:
        return (self.inner,)

    def plan(self, planner: Planner) -> MatchPlan:
        convert, inner = self.convert, planner.plan(self.inner)

        def step(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
            found = convert(value, owner)
            return FAILED if found is MISS else (inner, found, owner, rest)

        return StepPlan(step, self.what)

    def variants(self, of: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        return of(self.inner)

    def __str__(self) -> str:
        return self.what


def scaled(x: Any, c: Any) -> Term:
    """`x` times a number, in either order, or divided by one: `c` is the factor, 1 / n for a division by n."""
    factor = Via(_number, c, "a number")
    divisor = Via(_inverse, c, "a number other than 0")
    return Either((call("mul", x, factor), call("div", x, divisor)))


def _number(value: Any, _: fx.Node | None) -> Any:
    number = number_of(value)
    return MISS if number is None else number


def _inverse(value: Any, _: fx.Node | None) -> Any:
    number = number_of(value)
    return MISS if not number else 1.0 / number
