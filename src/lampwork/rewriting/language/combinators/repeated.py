"""`repeated(step, x)`: an op applied as often as the graph has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import fx

from lampwork.errors import PassError
from lampwork.records import record
from lampwork.rewriting.language.term import Term, Var, fits_all
from lampwork.rewriting.matching.match_plan import FAILED, Goals, MatchPlan, Note, StepPlan

if TYPE_CHECKING:
    from lampwork.rewriting.matching.match import Search
    from lampwork.rewriting.matching.planner import Planner


@record(eq=False, repr=False)
class Repeated(Term):
    """`step` applied `at_least` times or more, the innermost time to `x`. `body`: the step, applied to anything.
    `done`: the times already matched."""

    step: Callable[[Any], Any]
    x: Any
    body: Any
    at_least: int
    name: str
    done: int = 0

    depth: ClassVar[int] = 4

    def children(self) -> Sequence[Any]:
        return (self.body, self.x)

    def plan(self, planner: Planner) -> MatchPlan:
        stop, note = planner.plan(self.x), Note(("count", self.name), self.done)
        enough = self.done >= self.at_least
        # One step more is planned when a graph gets that far.
        further: list[MatchPlan] = []

        def step(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
            stopped = (stop, value, owner, (note, None, None, rest))
            if not isinstance(value, fx.Node) or value.op != "call_function":
                return stopped if enough else FAILED
            if enough:
                search.choice(stopped)
            if not further:
                further.append(planner.plan(self.step(dataclasses.replace(self, done=self.done + 1))))
            return (further[0], value, owner, rest)

        return StepPlan(step, str(self))

    def alternatives(self) -> Sequence[Any] | None:
        return (self.body, self.x) if self.at_least == 0 else (self.body,)

    def fits_all(self) -> bool:
        return self.at_least == 0 and fits_all(self.x)

    def names(self) -> Iterable[str]:
        return (self.name,)

    def variants(self, of: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        for times in (self.at_least, self.at_least + 2):
            found = self.x
            for _ in range(times):
                found = self.step(found)
            yield from of(found)

    def __str__(self) -> str:
        return "the repeated op"


def repeated(step: Callable[[Any], Any], x: Any, at_least: int = 1, name: str = "n") -> Term:
    """`step(step(... x))`, as many times as the graph has it, `at_least` times or more. `match.count(name)` is how
    often.

    Raises:
        PassError: `at_least` is negative, or `step` gives its argument back.
    """
    if at_least < 0:
        raise PassError(f"repeated() at least {at_least} times")
    hole = Var("", "any")
    body = step(hole)
    if body is hole or not isinstance(body, Term):
        raise PassError("the step of repeated() applies no op to its argument")
    return Repeated(step, x, body, at_least, name)
