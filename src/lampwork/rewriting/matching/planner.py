"""From a pattern to its plan, with all spellings worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from lampwork.records import record
from lampwork.rewriting.language.term import Call, Term
from lampwork.rewriting.language.traverse import depth_of, parts_of, shared_calls
from lampwork.rewriting.matching.equivalences.spellings import spellings
from lampwork.rewriting.matching.match_plan import (
    ANYTHING,
    CallPlan,
    ItemsPlan,
    LitPlan,
    MatchPlan,
    OutputPlan,
    Overload,
    Row,
)
from lampwork.standard import functools

COMMUTATIVE = frozenset(
    {
        "add",
        "mul",
        "maximum",
        "minimum",
        "eq",
        "ne",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "logical_and",
        "logical_or",
        "logical_xor",
    }
)


@record(eq=False)
class PatternPlan:
    """`names`: all variables; what a match leaves out is None."""

    root: MatchPlan
    outputs: tuple[OutputPlan, ...]
    names: tuple[str, ...]


@functools.lru_cache(maxsize=8192)
def plan_of(pattern: Any) -> PatternPlan:
    """The plan of a term, or of a tuple of them, one for each output."""
    terms: list[Any] = list(cast("Any", pattern)) if isinstance(pattern, tuple) else [pattern]
    keys = shared_calls(terms) | frozenset(t for t in terms if isinstance(t, Call) and len(terms) > 1)
    planner = Planner(keys)
    plans = [planner.plan(t) for t in terms]
    known: set[Any] = set(parts_of(terms[0]))
    outputs: list[OutputPlan] = []
    for i, term in enumerate(terms[1:], 1):
        parts = list(dict.fromkeys(parts_of(term)))
        anchors = tuple(p for p in parts if p in known and (isinstance(p, str) or p in keys))
        outputs.append(OutputPlan(i, term, plans[i], anchors, depth_of(term) + 2))
        known.update(parts)
    names = tuple(dict.fromkeys(p for t in terms for p in parts_of(t) if isinstance(p, str)))
    return PatternPlan(plans[0], tuple(outputs), names)


@dataclass(slots=True)
class Planner:
    """Makes the plans of one pattern. `keys`: the calls that it has several times; each has one plan."""

    keys: frozenset[Call]
    known: dict[Call, MatchPlan] = field(default_factory=dict[Call, MatchPlan])

    def plan(self, term: Any) -> MatchPlan:
        """The plan of a term, a list of terms or a plain value."""
        if isinstance(term, Term):
            return term.plan(self)
        if isinstance(term, list | tuple):
            return ItemsPlan(tuple(self.plan(t) for t in cast("Sequence[Any]", term)))
        return ANYTHING if term is Ellipsis else LitPlan(term)

    def call(self, term: Call) -> MatchPlan:
        """The plan of a call, in all its spellings."""
        found = self.known.get(term)
        if found is None:
            found = self._call(term)
            if term in self.keys:
                self.known[term] = found
        return found

    def _call(self, term: Call) -> CallPlan:
        overloads: dict[Any, list[Overload]] = {}
        others: list[MatchPlan] = []
        # Operands are shared between overloads and spellings.
        known: dict[int, MatchPlan] = {}

        def operand(t: Any) -> MatchPlan:
            if id(t) not in known:
                known[id(t)] = self.plan(t)
            return known[id(t)]

        for spelling in spellings(term):
            if not isinstance(spelling, Call) or spelling.form != "final":
                others.append(self.plan(spelling))
                continue
            for target, terms in spelling.values.items():
                overloads.setdefault(target, []).append(_overload(spelling.name, [operand(t) for t in terms]))
        return CallPlan(
            term.name,
            {target: tuple(rows) for target, rows in overloads.items()},
            tuple(others),
            term if term in self.keys else None,
        )


def _overload(name: str, plans: Sequence[MatchPlan]) -> Overload:
    swapped = None
    if name in COMMUTATIVE and len(plans) >= 2 and plans[0] is not plans[1]:
        # The operand that is written first is looked for first.
        swapped = Row.of([(1, plans[0]), (0, plans[1]), *enumerate(plans[2:], 2)])
    return Overload(len(plans), Row.of(list(enumerate(plans))), swapped)
