"""What became of a network, counted: how it is represented, what fired, what is computed together, what that moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import fx

from lampwork.api import function_of
from lampwork.compiled.stages import Compilation
from lampwork.inspect.explain import explanation_of
from lampwork.inspect.explanation import Explanation, RegionReport
from lampwork.inspect.profile import Profile, profile
from lampwork.inspect.report.data import names_in
from lampwork.rewriting.apply.aliasing import view_base
from lampwork.rewriting.flops import flops, moved_bytes
from lampwork.rewriting.schema import packet_name
from lampwork.runtime.steps import StepFacts
from lampwork.standard import operator

MOST_REASONS = 5
"""Of the reasons against fusing, the most frequent."""

PROFILED_CALLS = 10

SEEN = ("definitions", "kernels", "program")
"""The stages by which two compilations are told apart."""


def explained(compiled: Any) -> Explanation:
    """What is known of a compiled network that has been called."""
    return explanation_of(function_of(compiled))


def marks(explanation: Explanation) -> list[str]:
    """Texts that are the same for compilations to the same loops, calls and memory."""
    return [
        region.stages.text(stage)
        for region in explanation.regions
        for stage in SEEN
        if stage in region.stages
    ]


def facts(explanation: Explanation) -> dict[str, Any]:
    """All that is counted of one network, for the sizes of its first call. Regions are taken together."""
    regions = explanation.regions
    made = [region.stages.compilation for region in regions if region.stages.compilation is not None]
    steps = list(steps_of(regions))
    return {
        "representation": _representation(explanation, made),
        "passes": _passes(made),
        "rewrites": _fired(made),
        "fusion": _fusion(regions, made, steps),
        "work": _work(made, steps),
        "layout": {
            "conversions": _total(regions, "layout conversions"),
            "constants": _total(regions, "constants"),
            "constants_bytes": sum(map(_constant_bytes, made)),
        },
        "arena_bytes": max((region.counts.get("arena bytes", 0) for region in regions), default=0),
        "compile_seconds": _seconds(regions),
    }


def steps_of(regions: Iterable[RegionReport]) -> Iterator[StepFacts]:
    """The kernels and calls of ATen of all regions, in order."""
    for region in regions:
        yield from region.stages.steps()


# --- parts ------------------------------------------------------------------------------------------------------------


def _representation(explanation: Explanation, made: Sequence[Compilation]) -> dict[str, Any]:
    regions = explanation.regions
    recorded = [node for each in made for node in calls_in(each.recorded)]
    return {
        "regions": len(regions),
        "nodes": len(recorded),
        "views": sum(not is_work(node) for node in recorded),
        "nodes_after_passes": sum(len(list(calls_in(each.graph))) for each in made),
        "operators": dict(
            Counter(packet_name(node.target) for node in recorded if is_work(node)).most_common()
        ),
        "breaks": [{"code": each.code, "cause": each.cause} for each in explanation.breaks],
        "refusals": [{"code": each.code, "cause": each.cause} for each in explanation.refusals],
        "guards": sum(not guard.slow for region in regions for guard in region.guards),
        "guards_after_changes": sum(guard.slow for region in regions for guard in region.guards),
        "symbols": [symbol for region in regions for symbol in region.symbols],
    }


def calls_in(graph: fx.Graph) -> Iterator[fx.Node]:
    """The operators of a graph, without what only takes one of several results."""
    return (
        node for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem
    )


def is_work(node: fx.Node) -> bool:
    """Whether an operator computes or copies something: a view does neither."""
    return view_base(node) is None


def _passes(made: Sequence[Compilation]) -> dict[str, int]:
    found = Counter[str]()
    for each in made:
        for done in each.records:
            found[done.name] += done.rewrites
    return {name: count for name, count in found.items() if count}


def _fired(made: Sequence[Compilation]) -> dict[str, int]:
    found = Counter[str]()
    for each in made:
        for done in each.records:
            found.update(done.hits)
    return dict(found.most_common())


def _fusion(
    regions: Sequence[RegionReport], made: Sequence[Compilation], steps: Sequence[StepFacts]
) -> dict[str, Any]:
    nodes = fused = largest = 0
    aten = Counter[str]()
    for each in made:
        work = {
            node.name: node
            for node in calls_in(each.graph)
            if is_work(node) and not node.meta.get("constant")
        }
        # What equal graphs were compiled to has the names of the first of them.
        names = {} if each.inside is None else names_in(each.graph, each.inside.graph)
        together: set[str] = set()
        for step in (step for program in each.programs for step in program.steps()):
            computed = {names[name] for name in step.nodes if name in names} & work.keys()
            largest = max(largest, len(computed))
            if len(computed) > 1:
                together |= computed
            if step.kind == "aten":
                aten.update({packet_name(work[name].target) for name in computed} or {step.name})
        nodes += len(work)
        fused += len(together)
    decisions = [each for one in made if one.inside is not None for each in one.inside.decisions]
    against = Counter(each.reason for each in decisions if not each.verdict)
    return {
        "nodes": nodes,
        "steps": len(steps),
        "kinds": dict(Counter(step.kind for step in steps).most_common()),
        "aten": dict(aten.most_common()),
        "fused_nodes": fused,
        "largest_nodes": largest,
        "distinct_functions": _total(regions, "distinct functions"),
        "joined": sum(each.verdict for each in decisions),
        "not_joined": sum(not each.verdict for each in decisions),
        "reasons": dict(against.most_common(MOST_REASONS)),
    }


def _work(made: Sequence[Compilation], steps: Sequence[StepFacts]) -> dict[str, Any]:
    """Node by node, as eager computes, and step by step, as compiled."""
    nodes = [node for each in made for node in calls_in(each.recorded)]
    moved = [moved_bytes(node) for node in nodes]
    return {
        "eager_flops": sum(flops(node) or 0 for node in nodes),
        "eager_bytes_read": sum(read for read, _ in moved),
        "eager_bytes_written": sum(written for _, written in moved),
        "flops": sum(step.flops for step in steps),
        "bytes_read": sum(step.bytes_read for step in steps),
        "bytes_written": sum(step.bytes_written for step in steps),
    }


def _constant_bytes(made: Compilation) -> int:
    return sum(
        value.nbytes
        for program in made.programs
        for value in program.values
        if value.kind == "constant" and value.dtype is not None
    )


def _total(regions: Sequence[RegionReport], what: str) -> int:
    return sum(region.counts.get(what, 0) for region in regions)


def _seconds(regions: Sequence[RegionReport]) -> dict[str, float]:
    found: dict[str, float] = {}
    for region in regions:
        for step, spent in region.seconds.items():
            found[step] = found.get(step, 0.0) + spent
    return found


# --- time -------------------------------------------------------------------------------------------------------------


def time_by_kind(call: Callable[[], object]) -> dict[str, Any]:
    """Where the time of a call goes, by kind of step, and the least that a machine at its limits would take for those
    steps of which that is known."""
    call()
    with profile() as seen:
        for _ in range(PROFILED_CALLS):
            call()
    return _by_kind(seen)


def _by_kind(seen: Profile) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    least = known = 0.0
    for row in seen.rows:
        seconds[row.kind] = seconds.get(row.kind, 0.0) + row.seconds / PROFILED_CALLS
        if row.least_seconds is not None:
            least += row.least_seconds / PROFILED_CALLS
            known += row.seconds / PROFILED_CALLS
    return {"seconds": seconds, "least_seconds": least, "least_known_of_seconds": known}
