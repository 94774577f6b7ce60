"""The driver that applies a set of rewrites to a graph until none fires."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from lampwork.errors import PassError, RewriteError
from lampwork.rewriting.apply.apply import Host, Replaced, prepare, verdict_of
from lampwork.rewriting.apply.cycles import Endless, Lineages
from lampwork.rewriting.apply.layout import propagate_strides
from lampwork.rewriting.language.rules import Rewrite, Rule, as_rule, rule, rule_of
from lampwork.rewriting.language.traverse import depth_of
from lampwork.rewriting.matching.automaton import PatternAutomaton
from lampwork.rewriting.matching.match import Match, matches
from lampwork.verdict import No

__all__ = ["Host", "Rewrite", "Rewriter", "Rule", "as_rule", "rule", "rule_of"]

_SPELLED = 2
"""How much deeper than its pattern a match may be in another spelling."""

_NEAR = 64
"""How many nodes above a change are looked at again at once; what is further up waits for the next sweep."""


@dataclass(slots=True)
class Rewriter:
    """A set of rewrites, those of the highest priority first, with an automaton over their patterns.

    before:  %n = neg(%x), %m = neg(%n), %y = relu(%m)
    after:   %y = relu(%x)
    """

    rules: tuple[Rule, ...]
    _automaton: PatternAutomaton = field(init=False)
    _depth: int = field(init=False)

    def __init__(self, rewrites: Iterable[Any]) -> None:
        self.rules = tuple(sorted(map(as_rule, rewrites), key=lambda r: -r.priority))
        self._automaton = PatternAutomaton.of(r.roots[0] for r in self.rules)
        self._depth = max((depth_of(root) + _SPELLED for r in self.rules for root in r.roots), default=0)

    def run(self, graph: fx.Graph, host: Host) -> int:
        """Apply the rewrites until none fires; how many did.

        A rewrite that fails, and rewrites that undo each other, are left out from then on and reported to
        `host.fault`, with the graph as it was before if the error says `undone`.

        Raises:
            RewriteError: `host.fault` raises it.
        """
        if not any(n.op == "call_function" and self._automaton.knows(n.target) for n in graph.nodes):
            return 0
        run = _Run(self.rules, self._automaton, self._depth, graph, host)
        count = 0
        try:
            while (fired := run.sweep()) > 0:
                count += fired
        finally:
            # Also where `host.fault` raises: what was rewritten before stays, and is valid.
            if run.restrided:
                propagate_strides(graph, host.infer, run.restrided)
        return count


@dataclass(slots=True)
class _Run:
    """One run over one graph. `states`: what the automaton says of each node that may be part of a match."""

    rules: tuple[Rule, ...]
    automaton: PatternAutomaton
    depth: int
    graph: fx.Graph
    host: Host
    states: dict[fx.Node, int] = field(default_factory=dict[fx.Node, int])
    work: deque[fx.Node] = field(default_factory=deque[fx.Node])
    queued: set[fx.Node] = field(default_factory=set[fx.Node])
    restrided: list[fx.Node] = field(default_factory=list[fx.Node])
    banned: set[str] = field(default_factory=set[str])
    refused: set[tuple[str, fx.Node, str]] = field(default_factory=set[tuple[str, fx.Node, str]])
    lineages: Lineages = field(init=False)
    started: bool = False

    def __post_init__(self) -> None:
        self.lineages = Lineages(limit=10_000 + 50 * len(self.graph.nodes))

    def sweep(self) -> int:
        """Try every node, and again those that a rewrite may concern; how many rewrites fired."""
        count = 0
        for node in self.graph.nodes:
            if node.op != "call_function":
                continue
            if not self.started and (state := self.automaton.state(node, self.states)):
                self.states[node] = state
            self._enqueue(node)
        self.started = True
        while self.work:
            node = self.work.popleft()
            self.queued.discard(node)
            if node._erased:
                continue
            done = self._rewrite(node)
            if done is None:
                continue
            count += 1
            self._look_again(done)
        return count

    def _enqueue(self, node: fx.Node) -> None:
        if node not in self.queued and self.automaton.candidates(self.states.get(node, 0)):
            self.queued.add(node)
            self.work.append(node)

    def _rewrite(self, node: fx.Node) -> Replaced | None:
        for number in self.automaton.candidates(self.states.get(node, 0)):
            r = self.rules[number]
            if r.name in self.banned:
                continue
            try:
                done = self._try(r, node)
            except RewriteError as error:
                self.banned.update(error.rewrites)
                self.host.fault(error)
                continue
            if done is not None:
                return done
        return None

    def _try(self, r: Rule, node: fx.Node) -> Replaced | None:
        for match in _matches(r, node):
            verdict = verdict_of(r, match)
            prepared = verdict if isinstance(verdict, No) else prepare(self.graph, r, match, self.host)
            if isinstance(prepared, No):
                self._refuse(r, node, prepared.reason)
                continue
            if not self.host.spend(r.name):
                prepared.editor.discard()
                continue
            endless = self.lineages.step(r.name, match, prepared.old, prepared.new, prepared.editor.made)
            if endless is None:
                return prepared.commit()
            self.banned.update(endless.rewrites)
            error = _endless(endless, node)
            # What the value was before the first of them, or as near to it as can be.
            done = prepared.commit() if endless.closed else prepared.editor.discard()
            self.host.fault(error)
            return done
        return None

    def _refuse(self, r: Rule, node: fx.Node, reason: str) -> None:
        if reason and (r.name, node, reason) not in self.refused:
            self.refused.add((r.name, node, reason))
            self.host.refuse(r.name, reason)

    def _look_again(self, done: Replaced) -> None:
        """New states for the new nodes and what is above them, and a place in the queue."""
        self.restrided.extend(done.restrided)
        level = [n for n in (*done.made, *done.new) if not n._erased]
        # The new ones first: what becomes of one value is seen through before others are begun.
        for node in reversed(done.made):
            if node not in self.queued and not node._erased:
                self.queued.add(node)
                self.work.appendleft(node)
        seen = 0
        for _ in range(self.depth + 1):
            changed = False
            for node in level:
                if node.op != "call_function":
                    continue
                state = self.automaton.state(node, self.states)
                changed = changed or state != self.states.get(node, 0)
                self.states[node] = state
                self._enqueue(node)
            seen += len(level)
            if seen > _NEAR and not changed:
                break
            level = list(dict.fromkeys(user for n in level for user in n.users))


def _matches(r: Rule, node: fx.Node) -> Iterator[Match]:
    try:
        yield from matches(r.pattern, node)
    except PassError as error:  # a predicate of the pattern raised
        raise RewriteError(
            f"rewrite {r} at {node.name}: its pattern fails: {error.cause}",
            rewrites=(r.name,),
            location=node.meta.get("location"),
        ) from error


def _endless(endless: Endless, node: fx.Node) -> RewriteError:
    names = endless.rewrites
    if len(names) == 1:
        what = f"the rewrite {names[0]} does not come to an end: it fires on what it made itself"
        fix = (
            "write a replacement in which its pattern is not found, or let its check refuse what it has made: "
            "the check sees the match, such as its values and match.root.users"
        )
    else:
        how = "one undoes what the other does" if endless.closed else "each fires on what another made"
        what = f"the rewrites {', '.join(names)} do not come to an end: {how}"
        fix = f"let the check of one of them, such as {names[0]}, refuse what the others make"
    return RewriteError(
        f"{what}, at {node.name}",
        rewrites=names,
        undone=endless.closed,
        endless=True,
        fix=fix,
        location=node.meta.get("location"),
    )
