"""`lampwork.why_not`: why a rewrite did not fire in a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import fx

from lampwork.api import function_of
from lampwork.compiled.function import Function
from lampwork.compiled.stages import Compilation, Stages
from lampwork.config import Config, using_config
from lampwork.display import Shown
from lampwork.errors import LampworkError, Location, OptionError
from lampwork.graph.copying import copy_graph
from lampwork.graph.printing import format_value, target_name
from lampwork.plugins.arrange import SequenceStep
from lampwork.plugins.context import PassContext
from lampwork.plugins.guarded import RewriteStep
from lampwork.plugins.registry import Registered, registry
from lampwork.plugins.switches import Switches
from lampwork.records import record
from lampwork.rewriting.apply.apply import verdict_of
from lampwork.rewriting.apply.driver import Rule
from lampwork.rewriting.language.names import nearest
from lampwork.rewriting.language.rules import snake_case
from lampwork.rewriting.matching.match import Match, matches, nearest_miss_in
from lampwork.standard import operator
from lampwork.transforms.pipeline import select_passes, tree_rules
from lampwork.transforms.rewrites import Rewrites
from lampwork.verdict import No


@record
class Spot(Shown):
    """A place in a graph: a node, the user's line, and a remark. `matched`: how many nodes of the pattern were found
    there."""

    node: str
    location: Location | None
    text: str
    matched: int = 0

    def __str__(self) -> str:
        where = f"{self.node}, {self.location}" if self.location is not None else self.node
        return f"{where}: {self.text}" if self.text else where


@record
class Answer(Shown):
    """What a rewrite did in one compiled version. `fired`: where it fired, or would fire if it were on. `refused`:
    matches that were not replaced, with the reason. `nearest`: if it matched nowhere, the nearest miss, with the
    condition that failed. `off`: why it was not tried at all; "" if it was. `trained`: of a trained version: why
    it fires in inference only."""

    version: str
    fired: tuple[Spot, ...] = ()
    refused: tuple[Spot, ...] = ()
    nearest: Spot | None = None
    off: str = ""
    trained: str = ""

    def __str__(self) -> str:
        lines: list[str] = []
        if self.off:
            lines.append(f"{self.version}: it did not run, {self.off}")
        if self.fired:
            times = "time" if len(self.fired) == 1 else "times"
            verb = "it would fire" if self.off else "it fired"
            lines.append(f"{self.version}: {verb} {len(self.fired)} {times}")
            lines += [f"    at {spot}" for spot in self.fired]
        elif not self.off or self.refused or self.nearest:
            lines.append(f"{self.version}: {'it would not fire' if self.off else 'it did not fire'}")
        lines += [f"    it matched, but was not applied, at {spot}" for spot in self.refused]
        if self.trained:
            lines.append(f"    {self.trained}")
        if self.nearest is not None:
            nodes = "node" if self.nearest.matched == 1 else "nodes"
            lines.append(
                f"    nearest, {self.nearest.matched} {nodes} of the pattern found, at {self.nearest}"
            )
        elif not (self.off or self.fired or self.refused or self.trained):
            lines.append("    nothing in the graph looks like the last operator of its pattern")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, repr=False)
class WhyNot(Shown):
    """What `why_not` found: an answer for each compiled version of a function and of what it goes on in. `none`: why
    there is none."""

    rule: Rule
    answers: tuple[Answer, ...]
    none: str = ""

    @property
    def fired(self) -> int:
        """How often it did."""
        return sum(len(a.fired) for a in self.answers if not a.off)

    def __str__(self) -> str:
        head = f"rewrite {self.rule}"
        if not self.answers:
            return f"{head}\n{self.none}"
        return "\n".join([head, *map(str, self.answers)])

    def _brief(self) -> str:
        versions = f"{len(self.answers)} version{'' if len(self.answers) == 1 else 's'}"
        return f"{self.rule.name}: fired {self.fired} times in {versions}"


def why_not(rewrite: Any, compiled: Callable[..., Any]) -> WhyNot:
    """Explain why a rewrite did not fire in a compiled function, or show where it fired.

    The passes run again on a copy of each graph that they were given: that of a version, or where it is trained, those
    of its forward and its backward.

    Args:
        rewrite: the result of `lampwork.rewrite`, its name, or the name of one of Lampwork's own rewrites.
        compiled: the result of `lampwork.compile`, called at least once. Versions after graph breaks are included.

    Raises:
        OptionError: `rewrite` is not a rewrite, or no rewrite has this name.
        TypeError: `compiled` was not made by `compile`.
    """
    rule, home = _rule(rewrite)
    answers: list[Answer] = []
    for function in function_of(compiled).tree():
        for entry in function.entries:
            answers += _answers(rule, home, entry.stages, function.config)
    return WhyNot(rule, tuple(answers), "" if answers else _why_none(rule, home, function_of(compiled)))


def _why_none(rule: Rule, home: str, function: Function) -> str:
    """Why there is no version to look at."""
    if _is_gone(rule, home):
        return "it is no longer registered: register it again, then call the function"
    if any(function.entries):
        return f"no version of {function.name} has a graph"
    return function.compiled.stages.why_none()


def _is_gone(rule: Rule, home: str) -> bool:
    item = registry().items.get(rule.name)
    return not home and (item is None or item.rule is not rule)


def _rule(rewrite: Any) -> tuple[Rule, str]:
    """The rule, and the pass of the tree that applies it, "" for a registered one."""
    if isinstance(rewrite, Registered):
        if rewrite.rule is None:
            raise OptionError(f"{rewrite.name} is a {rewrite.kind}, not a rewrite")
        return rewrite.rule, ""
    if isinstance(rewrite, Rule):
        name = rewrite.name
    elif isinstance(rewrite, str):
        name = rewrite
    else:
        kind: type = rewrite if isinstance(rewrite, type) else type(rewrite)
        name = str(getattr(cast(Any, rewrite), "name", "")) or snake_case(kind.__name__)
    item = registry().items.get(name)
    if item is not None and item.rule is not None:
        return item.rule, ""
    if name in tree_rules():
        home, rule = tree_rules()[name]
        return rule, home
    near = nearest(name, [*registry().items, *tree_rules()])
    hint = f"did you mean {near!r}? " if near else ""
    raise OptionError(
        f"no rewrite is called {name!r}", fix=f"{hint}print(lampwork.rewrites(all=True)) lists all there are"
    )


def _answers(rule: Rule, home: str, stages: Stages, config: Config) -> Iterator[Answer]:
    """An answer for each graph that was compiled for a version; for backward only if there is something to say."""
    whole = [] if stages.compilation is None else [stages.compilation]
    forwards, backwards = stages.halves.get("forward", []), stages.halves.get("backward", [])
    off = _off(rule, home, config)
    if "no longer" in off:
        if whole:
            yield Answer(stages.name, off=off)
        return
    if stages.trained:
        whole, forwards = [], [*whole, *forwards]
    for name, compilations in (("", whole), (" forward", forwards), (" backward", backwards)):
        for made in compilations:
            seen = _rehearsed(rule, home, made.given(), made.context(), config)
            answer = seen.answer(f"{stages.name}{name}", off)
            told = answer.fired or answer.refused
            if name == " forward" and not told:
                yield replace(answer, trained=_trained(seen, stages, made, config))
            elif told or name != " backward":
                yield answer


def _rehearsed(rule: Rule, home: str, graph: fx.Graph, ctx: PassContext, config: Config) -> _Rehearsal:
    """The passes over `graph`, with the rewrite on, whether it is or not: what would happen is told too."""
    rehearsal = _Rehearsal(rule, home)
    switches = ",".join(filter(None, [config.passes, f"+{home}" if home else "+rewrites", f"+{rule.name}"]))
    forced = replace(config, passes=switches, verify="", fuel=-1, strict=False)
    ctx.config, ctx.fuel, ctx.numeric, ctx.selection = forced, -1, None, registry().select(switches)
    with using_config(forced):
        rehearsal.run(graph, ctx)
    return rehearsal


def _trained(seen: _Rehearsal, stages: Stages, forward: Compilation, config: Config) -> str:
    """Why a rewrite fires in a graph as it was before differentiation, and not in its forward, where it was `seen`:
    autograd has operators of its own in the place of some. "" if it would not fire there either."""
    before = cast(fx.Graph, stages.aten)
    inference = _rehearsed(seen.rule, seen.home, copy_graph(before), forward.context(), config)
    known = {node.target for node in before.nodes} | {operator.getitem}
    computed = _computed(forward.recorded)
    told: dict[str, None] = {}
    for node in inference.matched:
        if node.target in seen.present:
            continue
        place = [node.meta.get(key) for key in ("location", "origin")]
        instead = {
            each.target: each
            for each in computed
            if each.target not in known and [each.meta.get(key) for key in ("location", "origin")] == place
        }
        told[_recorded_as(node, list(instead.values()))] = None
    if inference.fired and not told:
        return "it fires in inference only: in training autograd has other operators around it, see stages.forward"
    return "; ".join(told)


def _computed(forward: fx.Graph) -> list[fx.Node]:
    """What the results of a forward are computed by, without what only prepares a tensor to be saved."""
    output = next(iter(reversed(forward.nodes)))
    results: Any = output.args[0]
    needed: set[fx.Node] = set(results[: output.meta.get("n_shown", len(results))])
    for node in reversed(forward.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return [node for node in forward.nodes if node in needed and node.op == "call_function"]


def _recorded_as(node: fx.Node, instead: Sequence[fx.Node]) -> str:
    names = ", ".join(_plain_name(each) for each in instead) or "other operators"
    head = f"it fires in inference only: in training {_plain_name(node)} is recorded as {names}"
    if len(instead) != 1:
        return f"{head}; write another rewrite for these"
    return f"{head}; write another rewrite for {_as_text(instead[0])}"


def _plain_name(node: fx.Node) -> str:
    return target_name(node.target).removeprefix("aten.").rpartition(".")[0]


def _as_text(node: fx.Node) -> str:
    """A call in a line of algebra, whose options after the last tensor are left open."""
    last = max((place for place, value in enumerate(node.args) if isinstance(value, fx.Node)), default=-1)
    given = [
        value.name if isinstance(value, fx.Node) else format_value(value) for value in node.args[: last + 1]
    ]
    rest = ["..."] if len(given) < len(node.args) or node.kwargs else []
    part = "[0]" if isinstance(node.meta.get("val"), tuple) else ""
    return f"{_plain_name(node)}({', '.join([*given, *rest])}){part}"


def _off(rule: Rule, home: str, config: Config) -> str:
    """Why a rewrite is not tried in compilations with `config`."""
    switches = Switches.of(config.passes)
    item = registry().items.get(rule.name)
    if _is_gone(rule, home):
        return "it is no longer registered"
    place = home or ("" if item is None or item.place or item.sequence else Rewrites.name)
    for name in filter(None, (rule.name, place, item.sequence if item is not None else "")):
        if switches.states.get(name) is False:
            return f"as passes={config.passes!r} switches {name} off"
        owner = registry().items.get(name)
        if owner is not None and not switches.on(name, owner.enabled):
            return "it is disabled" if name == rule.name else f"{name} is disabled"
    if config.fuel >= 0:
        return f"or not everywhere, as the fuel is {config.fuel}"
    return ""


class _Rehearsal:
    """The passes once more, with an eye on one rewrite."""

    def __init__(self, rule: Rule, home: str) -> None:
        self.rule = rule
        self.home = home
        self.fired: list[Spot] = []
        self.refused: dict[tuple[str, str], Spot] = {}
        self.nearest: Spot | None = None
        self.matched: list[fx.Node] = []
        self.present: set[Any] = set()  # the operators among which it was looked for

    def answer(self, version: str, off: str) -> Answer:
        fired = tuple(self.fired)
        spots = {s.node for s in fired}
        refused = tuple(s for s in self.refused.values() if s.node not in spots)
        return Answer(version, fired, refused, None if fired or refused else self.nearest, off)

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        ctx.counting, ctx.witness = False, self._see
        for step in select_passes(ctx.config.passes, ctx.selection, ctx.backend_passes):
            here = self._holds(step, ctx)
            if here:
                self._look(graph)
            before = dict(ctx.refusals)
            try:
                step.run(graph, ctx)
            except LampworkError as error:
                # As in the compilation itself: there it was a fault, and is on record.
                self._note(Spot(step.name, error.location, error.cause))
            for (name, reason), count in ctx.refusals.items():
                known = any(spot.text == reason for spot in self.refused.values())
                if name == self.rule.name and count > before.get((name, reason), 0) and not known:
                    self._note(Spot("a match", None, reason))
        for fault in ctx.faults:
            if self.rule.name in getattr(fault, "rewrites", ()):
                self._note(Spot("a match", fault.location, fault.cause))

    def _holds(self, step: Any, ctx: PassContext) -> bool:
        """Whether the rewrite runs in this step."""
        if isinstance(step, SequenceStep):
            return any(self._holds(part, ctx) for part in step.steps)
        if isinstance(step, RewriteStep):
            return self.rule in step.rules
        if isinstance(step, Rewrites):
            return self.rule in ctx.selection.rules
        return bool(self.home) and step.name == self.home

    def _see(self, rule: Rule, match: Match, new: Sequence[fx.Node]) -> None:
        del new
        if rule is self.rule or (self.home and rule.name == self.rule.name):
            self.fired.append(Spot(match.root.name, match.root.meta.get("location"), ""))
            self.matched += match.nodes

    def _note(self, spot: Spot) -> None:
        self.refused.setdefault((spot.node, spot.text), spot)

    def _look(self, graph: fx.Graph) -> None:
        """What the pattern finds before the step runs: matches that the check refuses, or the nearest miss."""
        pattern: Any = self.rule.pattern
        self.present.update(node.target for node in graph.nodes)
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            for match in matches(pattern, node):
                verdict = verdict_of(self.rule, match)
                if isinstance(verdict, No):
                    self._note(Spot(node.name, node.meta.get("location"), verdict.reason))
        miss = nearest_miss_in(pattern, graph)
        if (
            miss is None
            or miss.node is None
            or not miss.matched
            or (self.nearest and self.nearest.matched >= miss.matched)
        ):
            return
        self.nearest = Spot(miss.node.name, miss.node.meta.get("location"), miss.reason, miss.matched)
