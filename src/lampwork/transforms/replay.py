"""What each pass, and each rewrite in it, changed: seen by running the passes once more.

Compilations keep no record of that, as it would cost each of them; passes are deterministic, so a second run over a
copy of what they were given shows it. That it does is checked: where another graph comes out, nothing is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from lampwork.config import using_config
from lampwork.errors import LampworkError, Location
from lampwork.graph.printing import format_graph, format_value
from lampwork.plugins.context import PassContext, dropped
from lampwork.records import record
from lampwork.rewriting.language.rules import Rule
from lampwork.rewriting.matching.match import Match
from lampwork.transforms.pipeline import PassRecord, select_passes


@record(eq=False)
class Seen:
    """A node as it was at one moment."""

    node: fx.Node
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    meta: Mapping[str, Any]

    @staticmethod
    def of(node: fx.Node) -> Seen:
        return Seen(node, node.args, node.kwargs, dict(node.meta))


@record(eq=False)
class Change:
    """What one rewrite changed, or in a pass everything that no rewrite did: `rewrite` is "" then.

    Attributes:
        source: where the author wrote the rewrite.
        node, line: where it fired, in the graph and in the user's program.
        removed, added, changed: nodes. Of one step no node is in two changes.
    """

    rewrite: str
    source: Location | None = None
    node: str = ""
    line: Location | None = None
    removed: tuple[fx.Node, ...] = ()
    added: tuple[Seen, ...] = ()
    changed: tuple[Seen, ...] = ()


@record(eq=False)
class Step:
    """One pass. `refusals`: (rewrite, reason) of matches that were not replaced -> how many."""

    name: str
    changes: tuple[Change, ...]
    refusals: Mapping[tuple[str, str], int]


@record(eq=False)
class Replay:
    """`start`: the nodes that the passes were given; `steps`: what each pass made of them."""

    start: tuple[Seen, ...]
    steps: tuple[Step, ...]


def replay(
    graph: fx.Graph, final: fx.Graph, records: Sequence[PassRecord], ctx: PassContext
) -> Replay | None:
    """Run the passes over `graph`, in place, as `run_passes` did when `records` and `final` came of it.

    Afterwards nodes of `graph` have the names that they have in `final`, and no other node has one of these. None if
    another graph came out: a plug-in was changed since, say.
    """
    ctx.config = replace(ctx.config, verify="", strict=False)
    ctx.counting, ctx.numeric = False, None
    start = tuple(map(Seen.of, graph.nodes))
    with using_config(ctx.config):
        passes = select_passes(ctx.config.passes, ctx.selection, ctx.backend_passes)
        if [step.name for step in passes] != [each.name for each in records]:
            return None
        steps: list[Step] = []
        for each in passes:
            try:
                steps.append(_run(graph, each, ctx))
            except LampworkError:
                return None  # it did not, then
    made = Replay(start, tuple(steps))
    return made if _named_as(made, graph, final) else None


def _run(graph: fx.Graph, step: Any, ctx: PassContext) -> Step:
    before = {node: _State.of(node) for node in graph.nodes}
    firings = _Firings(before)
    refused = dict(ctx.refusals)
    ctx.running, ctx.witness = step.name, firings.see
    step.run(graph, ctx)
    refusals = {key: n - refused.get(key, 0) for key, n in ctx.refusals.items() if n > refused.get(key, 0)}
    now = dict.fromkeys(graph.nodes)
    return Step(
        step.name,
        firings.changes(
            [node for node in before if node not in now],
            [node for node in now if node not in before],
            [node for node in now if node in before and before[node].differs(node)],
        ),
        refusals,
    )


@record(eq=False)
class _State:
    """What a pass may change of a node. Symbolic numbers are not compared: the question would be one of theirs."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    spec: Any
    constant: bool

    @staticmethod
    def of(node: fx.Node) -> _State:
        constant = bool(node.meta.get("constant"))
        return _State(node.target, node.args, node.kwargs, node.meta.get("val"), constant)

    def differs(self, node: fx.Node) -> bool:
        now = _State.of(node)
        return (
            now.target is not self.target
            or now.constant != self.constant
            or (now.spec is not self.spec and str(now.spec) != str(self.spec))
            or (now.args is not self.args and format_value(now.args) != format_value(self.args))
            or (
                now.kwargs is not self.kwargs
                and [(key, format_value(value)) for key, value in now.kwargs.items()]
                != [(key, format_value(value)) for key, value in self.kwargs.items()]
            )
        )


@dataclass(slots=True)
class _Firings:
    """The rewrites that fired in one pass, and which nodes each may have added, removed and changed."""

    before: Mapping[fx.Node, _State]
    fired: list[Change] = field(default_factory=list[Change])
    added: dict[fx.Node, int] = field(default_factory=dict[fx.Node, int])
    removed: dict[fx.Node, int] = field(default_factory=dict[fx.Node, int])
    changed: dict[fx.Node, int] = field(default_factory=dict[fx.Node, int])

    def see(self, rule: Rule, match: Match, new: Sequence[fx.Node]) -> None:
        number, root = len(self.fired), match.root
        self.fired.append(Change(rule.name, rule.source, root.name, root.meta.get("location")))
        work = list(new)
        while work:
            node = work.pop()
            if node not in self.before and node not in self.added:
                self.added[node] = number
                work.extend(node.all_input_nodes)
        self.removed.update(dict.fromkeys(dropped(match.roots), number))
        self.changed.update((user, number) for before in match.roots for user in before.users)

    def changes(
        self, removed: Sequence[fx.Node], added: Sequence[fx.Node], changed: Sequence[fx.Node]
    ) -> tuple[Change, ...]:
        """What came of it, of each rewrite that left something, and at last of none."""
        rest = len(self.fired)
        parts: list[tuple[list[fx.Node], list[Seen], list[Seen]]] = [([], [], []) for _ in range(rest + 1)]
        for node in removed:
            parts[self.removed.get(node, rest)][0].append(node)
        for node in added:
            parts[self.added.get(node, rest)][1].append(Seen.of(node))
        for node in changed:
            parts[self.changed.get(node, rest)][2].append(Seen.of(node))
        return tuple(
            replace(each, removed=tuple(gone), added=tuple(new), changed=tuple(other))
            for each, (gone, new, other) in zip((*self.fired, Change("")), parts, strict=True)
            if gone or new or other
        )


def _named_as(made: Replay, graph: fx.Graph, final: fx.Graph) -> bool:
    """Give nodes the names that they have in `final`; whether they are the same nodes."""
    nodes, wanted = list(graph.nodes), list(final.nodes)
    if len(nodes) != len(wanted):
        return False
    taken = {node.name for node in wanted}
    kept = set(nodes)
    changes = [change for step in made.steps for change in step.changes]
    for seen in (*made.start, *(each for change in changes for each in change.added)):
        if seen.node not in kept and seen.node.name in taken:
            seen.node.name = _free(seen.node.name, taken)
        taken.add(seen.node.name)
    for node, other in zip(nodes, wanted, strict=True):
        node.name = other.name
    return format_graph(graph) == format_graph(final)


def _free(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}_was{number}" in taken:
        number += 1
    return f"{name}_was{number}"
