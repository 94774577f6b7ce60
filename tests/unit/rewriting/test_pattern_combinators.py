"""A combinator is one class: one that is defined here is matched, indexed, explained, checked and sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from graphkit import record
from torch import fx

from lampwork.errors import PassError
from lampwork.patterns import tensor
from lampwork.plugins.context import PassContext
from lampwork.records import record as data
from lampwork.rewriting.apply.driver import Rewriter, rule_of
from lampwork.rewriting.language.term import Term, call
from lampwork.rewriting.matching.automaton import PatternAutomaton
from lampwork.rewriting.matching.match import Search, matches, nearest_miss_in
from lampwork.rewriting.matching.match_plan import FAILED, Goals, MatchPlan, Note, StepPlan
from lampwork.rewriting.matching.planner import Planner
from lampwork.testing.samples import samples_of

X = torch.rand(2, 3)


@data(eq=False)
class Between(Term):
    """A term whose node has from `low` to `high` readers; their number is `match.count(name)`."""

    x: Any
    low: int
    high: int
    name: str

    def children(self) -> Sequence[Any]:
        return (self.x,)

    def plan(self, planner: Planner) -> MatchPlan:
        inner = planner.plan(self.x)

        def step(search: Search, value: Any, owner: fx.Node | None, rest: Goals) -> Goals:
            readers = len(value.users) if isinstance(value, fx.Node) else 0
            if not self.low <= readers <= self.high:
                return FAILED
            return (inner, value, owner, (Note(("count", self.name), readers), None, None, rest))

        return StepPlan(step, str(self))

    def alternatives(self) -> Sequence[Any] | None:
        return (self.x,)

    def names(self) -> Iterable[str]:
        return (self.name,)

    def variants(self, of: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        return of(self.x)

    def __str__(self) -> str:
        return f"{self.x} with {self.low} to {self.high} readers"


def pattern(x: Any) -> Any:
    return torch.exp(Between(torch.relu(x), 1, 2, "readers"))


RULE = rule_of(pattern, lambda x, readers: torch.relu(x) * readers, name="probe")


def fn(x: torch.Tensor, more: int) -> torch.Tensor:
    y = torch.relu(x)
    return sum((y + i for i in range(more)), torch.exp(y))


@pytest.mark.parametrize(("more", "readers"), [(0, 1), (1, 2), (2, None)])
def test_it_is_matched_and_noted(more: int, readers: int | None) -> None:
    graph = record(lambda x: fn(x, more), X)
    node = next(n for n in graph.nodes if n.target is torch.ops.aten.exp.default)
    assert [m.count("readers") for m in matches(RULE.pattern, node)] == ([] if readers is None else [readers])
    assert Rewriter([RULE]).run(graph, PassContext()) == (readers is not None)


def test_a_miss_is_explained() -> None:
    miss = nearest_miss_in(RULE.pattern, record(lambda x: fn(x, 2), X))
    assert miss is not None
    assert miss.reason.startswith(
        "argument 'self' of exp: expected relu(x) with 1 to 2 readers, got relu (float32[2, 3])"
    )


def test_the_automaton_sees_what_it_may_be() -> None:
    automaton = PatternAutomaton.of([RULE.roots[0]])
    for inner, candidates in ((torch.relu, (0,)), (torch.tanh, ())):
        graph = record(lambda x, f=inner: torch.exp(f(x)), X)
        states: dict[fx.Node, int] = {}
        calls = [n for n in graph.nodes if n.op == "call_function"]
        for node in calls:
            states[node] = automaton.state(node, states)
        assert automaton.candidates(states[calls[-1]]) == candidates


def test_patterns_of_it_are_checked() -> None:
    with pytest.raises(PassError, match="the pattern matches any value"):
        rule_of(lambda x: Between(x, 1, 2, "n"), lambda x: x, name="probe")
    with pytest.raises(PassError, match=r"takes 'm', which its pattern does not"):
        rule_of(pattern, lambda x, m: x, name="probe")


def test_it_is_printed() -> None:
    with pytest.raises(PassError, match=r"relu takes the arguments \(_ with 1 to 2 readers, 3\)"):
        call("relu", Between(tensor(), 1, 2, "n"), 3)


def test_samples_are_made_of_it() -> None:
    assert samples_of(RULE)
