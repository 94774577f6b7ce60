"""The driver that applies a set of rewrites to a graph until none fires."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from torch import fx

from lampwork.errors import PassError
from lampwork.graph.spec import TensorSpec
from lampwork.rewrite import schema
from lampwork.rewrite.aliasing import escapes, may_stand_for
from lampwork.rewrite.edit import Editor, replace, spec_change
from lampwork.rewrite.layout import adopt_strides, propagate_strides, same_strides
from lampwork.rewrite.match import Match, matches, why_not
from lampwork.rewrite.rules import Rewrite, Rule, as_rule, rule, rule_of
from lampwork.rewrite.term import Call, Term
from lampwork.verdict import No, Verdict, Yes

__all__ = ["Host", "Rewrite", "Rewriter", "Rule", "as_rule", "rule", "rule_of"]


class Host(Protocol):
    """What the driver needs of its surroundings; passes.PassContext is one."""

    def infer(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The spec of a call, or a tuple of specs."""
        ...

    def spend(self, name: str) -> bool:
        """Count one use of the rewrite `name`; False when the fuel is used up and it must not happen."""
        ...

    def refuse(self, name: str, reason: str) -> None:
        """Note that the rewrite `name` matched but was not applied."""
        ...


@dataclass(slots=True)
class Rewriter:
    """A set of rewrites, indexed by the op at the root and the ops below it.

    before:  %n = neg(%x), %m = neg(%n), %y = relu(%m)
    after:   %y = relu(%x)
    """

    rules: tuple[Rule, ...]
    _index: dict[Any, list[tuple[int, frozenset[Any]]]] = field(init=False)
    _depth: int = field(init=False)

    def __init__(self, rewrites: Iterable[Rewrite | Rule]) -> None:
        self.rules = tuple(sorted(map(as_rule, rewrites), key=lambda r: -r.priority))
        self._index = {}
        for number, r in enumerate(self.rules):  # by root op
            for target, args in cast(Call, r.pattern).values.items():
                needs = frozenset(a.name for a in args if isinstance(a, Call))
                self._index.setdefault(target, []).append((number, needs))
        self._depth = max((_depth(r.pattern) for r in self.rules), default=0)

    def run(self, graph: fx.Graph, host: Host) -> int:
        """Apply the rewrites until none fires; how many did.

        Raises:
            PassError: a replacement has another shape or dtype than what it replaces, or there is no end to it.
        """
        work = deque(n for n in graph.nodes if n.op == "call_function")
        queued = set(work)
        limit = 1000 + 20 * len(work)
        count = 0
        restrided: list[fx.Node] = []
        while work:
            node = work.popleft()
            queued.discard(node)
            if node._erased:
                continue
            new = self._rewrite(graph, node, host, restrided)
            if new is None:
                continue
            count += 1
            if count > limit:
                raise PassError(
                    f"the rewrites do not come to an end: {count} applied, last at {new[-1].name}"
                )
            for touched in self._affected(new):
                if touched not in queued:
                    queued.add(touched)
                    work.append(touched)
        if restrided:
            propagate_strides(graph, host.infer, restrided)
        return count

    def why_not(self, name: str, node: fx.Node) -> Verdict:
        """Why the rewrite `name` does not fire at `node`; Yes if it would."""
        r = next(r for r in self.rules if r.name == name)
        verdict = why_not(r.pattern, node)
        if not verdict:
            return verdict
        for match in matches(cast(Term, r.pattern), node):
            answer = r.check(match)
            verdict = answer if not isinstance(answer, bool) else Yes() if answer else No("the check says no")
            if verdict:
                break
        return verdict

    def _candidates(self, node: fx.Node) -> Iterable[Rule]:
        listed = self._index.get(node.target)
        if not listed:
            return
        below = {schema.packet_name(n.target) for n in node.all_input_nodes if n.op == "call_function"}
        for number, needs in listed:
            if needs <= below:
                yield self.rules[number]

    def _rewrite(
        self, graph: fx.Graph, node: fx.Node, host: Host, restrided: list[fx.Node]
    ) -> list[fx.Node] | None:
        for r in self._candidates(node):
            for match in matches(cast(Term, r.pattern), node):
                verdict = r.check(match)
                if not verdict:
                    host.refuse(r.name, verdict.reason if isinstance(verdict, No) else "the check says no")
                    continue
                done = self._apply(graph, r, match, host, restrided)
                if done is not None:
                    return done
        return None

    def _apply(
        self, graph: fx.Graph, r: Rule, match: Match, host: Host, restrided: list[fx.Node]
    ) -> list[fx.Node] | None:
        old = match.root
        editor = Editor(graph, host.infer, old)
        new = r.build(match, editor)
        reason = ""
        if not isinstance(new, fx.Node):
            reason = f"the replacement is {new!r}, not a tensor"
        elif change := spec_change(old.meta["val"], new.meta["val"]):
            reason = f"the replacement has another type: {change}"
        if reason and r.strict:
            raise PassError(f"rewrite {r.name} at {old.name}: {reason}", location=old.meta.get("location"))
        if not reason:
            verdict = _may_replace(old, new)
            reason = verdict.reason if isinstance(verdict, No) else ""
        if reason:
            host.refuse(r.name, reason)
        if reason or new is old or not host.spend(r.name):
            editor.discard()
            return None
        was, now = old.meta["val"], new.meta["val"]
        replace(graph, old, new)
        if new in editor.made:
            differ = adopt_strides(new, was)
        else:
            # It keeps its own strides; the users it gets were recorded for others.
            differ = isinstance(was, TensorSpec) and not same_strides(was, now)
        if differ:
            restrided.append(new)
        return [*editor.made, new]

    def _affected(self, new: Sequence[fx.Node]) -> list[fx.Node]:
        """Where patterns may match now: at the new nodes and above them."""
        found: dict[fx.Node, None] = {}
        level = [n for n in new if not n._erased]
        for _ in range(self._depth + 1):
            found.update(dict.fromkeys(n for n in level if n.op == "call_function"))
            level = list(dict.fromkeys(user for n in level for user in n.users))
        return list(found)


def _may_replace(old: fx.Node, new: fx.Node) -> Verdict:
    verdict = may_stand_for(new, old)
    if not verdict or not escapes(old):
        return verdict
    was, now = old.meta["val"], new.meta["val"]
    if isinstance(was, TensorSpec) and isinstance(now, TensorSpec) and was.strides != now.strides:
        return No(f"the result {old.name} would have other strides")
    return Yes()


def _depth(term: Term | Any) -> int:
    if isinstance(term, Call):
        return 1 + max((_depth(a) for a in next(iter(term.values.values()))), default=0)
    if isinstance(term, list | tuple):
        return max((_depth(t) for t in cast("Sequence[Any]", term)), default=0)
    return 0
