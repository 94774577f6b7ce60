"""Matching a pattern against a node of a graph.

The matcher keeps a list of goals ("this value must be that term") and works them off in order; where there is a
choice (operands of an add, either, maybe, ...) it notes the other ways and comes back to them when a goal fails. So
there is no recursion, and a plain pattern costs a few steps an op. What to do about a term is in its plan
(match_plan.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, cast

from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.rewriting import schema
from lampwork.rewriting.matching.match_plan import FAILED, Goals, ItemsPlan, MatchPlan, Row, operands
from lampwork.rewriting.matching.planner import PatternPlan, plan_of
from lampwork.verdict import No, Verdict, Yes


@record
class Match:
    """Where a pattern was found.

    `roots`: one node for each output of the pattern. `values`: what each variable stands for (a node, or a plain
    value; None for a variable of an option that was not taken, a Path for a named `through`, a dict for a named
    `rest`). `nodes`: all nodes the pattern covers, the roots first. `counts` and `sizes`: what `count` and `size` tell.
    """

    roots: tuple[fx.Node, ...]
    values: dict[str, Any]
    nodes: tuple[fx.Node, ...]
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def root(self) -> fx.Node:
        """The node of the first output."""
        return self.roots[0]

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            raise KeyError(f"the match has no {name!r}: it has {', '.join(self.values)}")
        return self.values[name]

    def spec(self, name: str) -> TensorSpec:
        """The spec of the tensor that the variable `name` stands for."""
        return cast(TensorSpec, self[name].meta["val"])

    def has(self, name: str) -> bool:
        """Whether the optional op, or the variable, called `name` is in the match."""
        return self.counts.get(name, 0) > 0 or self.values.get(name) is not None

    def count(self, name: str) -> int:
        """How often a `repeated` was found, which option of an `either` (from 0), 1 for a `maybe` that was there."""
        return self.counts[name]

    def size(self, name: str) -> int:
        """The size that the pattern calls `name` in the shapes of its variables."""
        return self.sizes[name]

    def only_use(self) -> Verdict:
        """Yes if nothing outside the match reads an inner node, so that the match can be replaced without repeating
        work."""
        inside = set(self.nodes)
        for node in self.nodes:
            if node in self.roots:
                continue
            for user in node.users:
                if user not in inside:
                    return No(f"{node.name} is also read by {user.name}")
        return Yes()


def matches(pattern: Any, node: fx.Node) -> Iterator[Match]:
    """The ways in which `pattern` matches: a term, or a tuple of terms for several outputs, of which the first is at
    `node`.

    Raises:
        PassError: a predicate of the pattern raised.
    """
    plan = plan_of(pattern)
    may_be = plan.root.glance()
    if may_be is not None and not may_be(node):
        return iter(())
    return Search(plan, node).run()


@record
class Miss:
    """The nearest that a pattern came to a match: `matched` nodes were right when `node` failed for `reason`."""

    matched: int
    node: fx.Node | None
    reason: str

    def __str__(self) -> str:
        where = f" at {self.node.name}" if self.node is not None else ""
        return f"{self.reason}{where} ({self.matched} nodes matched before)"


_WAYS = 4_096
"""How many ways to match a pattern at a node are tried: a sum of twenty variables has half a million."""


class Search:
    """One search for a pattern at a node. `bindings`: variables, notes, and the calls that the pattern has twice.
    `nodes`: what the match covers so far. With `explain` the failures are noted; `best` is the one furthest on,
    and `rows` are the ways in which the operands of a node were read."""

    __slots__ = ("best", "bindings", "choices", "explain", "node", "nodes", "plan", "rows", "trail")

    def __init__(self, plan: PatternPlan, node: fx.Node, explain: bool = False) -> None:
        self.plan = plan
        self.node = node
        self.explain = explain
        self.bindings: dict[Any, Any] = {}
        self.trail: list[Any] = []
        self.nodes: list[fx.Node] = []
        self.choices: list[tuple[Goals, int, int]] = []
        self.best: Miss | None = None
        self.rows: dict[fx.Node, list[Row]] = {}

    def run(self) -> Iterator[Match]:
        goals: Goals = None
        for output in reversed(self.plan.outputs):
            goals = (output, None, None, goals)
        goals = (self.plan.root, self.node, None, goals)
        for _ in range(_WAYS):
            if self._reach(goals):
                yield self._match()
            if not self.choices:
                return
            goals = self._back()

    def _back(self) -> Goals:
        goals, trail, nodes = self.choices.pop()
        while len(self.trail) > trail:
            del self.bindings[self.trail.pop()]
        del self.nodes[nodes:]
        return goals

    def _match(self) -> Match:
        found = self.bindings
        values = {name: found.get(name) for name in self.plan.names}
        counts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        rests: dict[str, dict[str, Any]] = {}
        for key, value in found.items():
            if isinstance(key, str):
                values[key] = value
            elif isinstance(key, tuple):
                kind, name, *parameter = cast("tuple[str, str]", key)
                if kind == "rest":
                    rests.setdefault(name, {})[parameter[0]] = value
                elif kind != "output":
                    (counts if kind == "count" else sizes)[name] = value
        roots = [self.node, *(found["output", output.number] for output in self.plan.outputs)]
        return Match(
            tuple(roots), {**values, **rests}, tuple(dict.fromkeys((*roots, *self.nodes))), counts, sizes
        )

    def bind(self, key: Any, value: Any) -> None:
        """Note what a variable stands for, until this way to match fails."""
        self.bindings[key] = value
        self.trail.append(key)

    def choice(self, goals: Goals) -> None:
        """Another way to match, from here on."""
        self.choices.append((goals, len(self.trail), len(self.nodes)))

    def _reach(self, goals: Goals) -> bool:
        """Work off all goals; False when one fails."""
        while goals is not None:
            plan, value, owner, rest = goals
            goals = plan.step(self, value, owner, rest)
            if goals is FAILED:
                if self.explain and (self.best is None or len(self.nodes) > self.best.matched):
                    where = owner if owner is not None else self.node
                    self.best = Miss(len(self.nodes), where, _reason(self, plan, value, owner))
                return False
        return True


def nearest_miss(pattern: Any, node: fx.Node) -> Miss | None:
    """How far the pattern came at `node`, by the way to match it that came furthest; None if it matches."""
    search = Search(plan_of(pattern), node, explain=True)
    if next(search.run(), None) is not None:
        return None
    return search.best


def nearest_miss_in(pattern: Any, graph: fx.Graph) -> Miss | None:
    """The nearest miss of a pattern anywhere in a graph; None if it matches somewhere, or there is nothing to match."""
    best: Miss | None = None
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        miss = nearest_miss(pattern, node)
        if miss is None:
            return None
        if best is None or miss.matched > best.matched:
            best = miss
    return best


def _reason(search: Search, plan: MatchPlan, value: Any, owner: fx.Node | None) -> str:
    text = plan.reason(search, value)
    position = _position(search, plan, value, owner)
    return f"argument {position!r} of {cast(fx.Node, owner).name}: {text}" if position else text


def _position(search: Search, plan: MatchPlan, value: Any, owner: fx.Node | None) -> str:
    """The name of the parameter of `owner` that is given `value`, "" where that could be several."""
    if owner is None or owner.op != "call_function":
        return ""
    parameters, actual = schema.signature(owner.target).parameters, operands(owner)
    for row in search.rows.get(owner, ()):
        # Several arguments may have equal values: it is the one that the plan is for.
        for i, wanted in row.all:
            whole = wanted is plan and actual[i] is value
            if whole or (isinstance(wanted, ItemsPlan) and wanted.has(plan, actual[i], value)):
                return parameters[i].name
    same = [p.name for p, given in zip(parameters, actual, strict=False) if given is value]
    return same[0] if len(same) == 1 else ""
