"""Which backend takes which nodes: a graph cut into convex parts."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import fx

from lampwork.backends.eager import EagerBackend
from lampwork.backends.protocol import Backend
from lampwork.rewrite.schema import is_pinned, packet_name
from lampwork.verdict import No


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that one backend compiles together, in graph order. `graph` is the whole graph.

    Constant nodes belong to no part: they are computed once per set of weights, by the part that reads them if its
    backend keeps constants. `others`: the backends that come after this one, should it fail.
    """

    backend: Backend
    nodes: tuple[fx.Node, ...]
    graph: fx.Graph
    others: tuple[Backend, ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """`backend` did not take `node`."""

    backend: str
    node: str
    op: str
    reason: str


def partition(graph: fx.Graph, backends: Sequence[Backend]) -> list[Part]:
    """Cut `graph` into parts, in an order in which they can run.

    Each node goes to the first backend that supports it, to eager PyTorch if none does. No path of the graph leaves a
    part and comes back to it. Random nodes and effects keep their order. A graph without calls gives one empty part.

    before:  %a = mm (x), %b = sort (eager), %c = mm(%b), %d = relu(%a)      backends: [x]
    after:   x: %a, %d | eager: %b | x: %c
    """
    chosen = {node: choose(node, backends)[0] for node in _calls(graph) if not node.meta.get("constant")}
    for node in chosen:
        if node.target is operator.getitem:
            source = cast(fx.Node, node.args[0])
            chosen[node] = chosen.get(source, chosen[node])
    order = [*(b.name for b in backends), EagerBackend.name]
    groups: dict[tuple[int, int], list[fx.Node]] = {}
    for node, level in _levels(chosen).items():
        groups.setdefault((level, order.index(chosen[node].name)), []).append(node)
    parts: list[Part] = []
    for (_, number), nodes in sorted(groups.items()):
        parts.append(Part(chosen[nodes[0]], tuple(nodes), graph, tuple(backends[number + 1 :])))
    if parts:
        return parts
    return [Part(backends[0] if backends else EagerBackend(), (), graph, tuple(backends[1:]))]


def _calls(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def choose(node: fx.Node, backends: Sequence[Backend]) -> tuple[Backend, list[Refusal]]:
    """The backend that takes `node`, and those that were asked before it."""
    refusals: list[Refusal] = []
    for backend in backends:
        verdict = backend.supports(node)
        if verdict:
            return backend, refusals
        reason = verdict.reason if isinstance(verdict, No) else "not supported"
        refusals.append(Refusal(backend.name, node.name, packet_name(node.target), reason))
    return EagerBackend(), refusals


def _levels(chosen: dict[fx.Node, Backend]) -> dict[fx.Node, int]:
    """How many times the backend changes, at most, on the way to each node. Nodes of one backend and level make a
    convex part: on every edge the level stays or grows, and between backends it grows."""
    levels: dict[fx.Node, int] = {}
    pinned: fx.Node | None = None
    for node, backend in chosen.items():
        needs = [i for i in node.all_input_nodes if i in chosen]
        if is_pinned(node):
            if pinned is not None:
                needs.append(pinned)
            pinned = node
        levels[node] = max(
            (levels[i] + (chosen[i].name != backend.name) for i in needs),
            default=0,
        )
    return levels


def subgraph(
    part: Part, leaving: Collection[fx.Node] | None = None, keep_constants: bool = False
) -> tuple[fx.Graph, list[fx.Node], list[fx.Node]]:
    """The part as a graph of its own: (graph, the nodes its placeholders stand for, the nodes it returns).

    Inputs come first, then bound placeholders. Constant nodes are copied in with `keep_constants`, and stand behind
    bound placeholders otherwise. It returns those of its nodes that are in `leaving`, or that others use.
    """
    inside = set(part.nodes)
    members = [n for n in _calls(part.graph) if n in inside]
    wanted: set[fx.Node] = set()
    work = list(members) if keep_constants else []
    while work:
        for needed in work.pop().all_input_nodes:
            if needed.meta.get("constant") and needed not in wanted and needed not in inside:
                wanted.add(needed)
                work.append(needed)
    body = [n for n in part.graph.nodes if n in inside or n in wanted]
    outside: dict[fx.Node, None] = {}
    for node in body:
        outside.update(dict.fromkeys(i for i in node.all_input_nodes if i not in inside and i not in wanted))
    inputs = sorted(outside, key=is_fixed)
    if leaving is None:
        outputs = [n for n in members if any(user not in inside for user in n.users)]
    else:
        outputs = [n for n in members if n in leaving]
    return extract(inputs, body, outputs), inputs, outputs


def is_fixed(node: fx.Node) -> bool:
    """Bound, or computed from bound tensors only."""
    if node.op == "placeholder":
        return bool(node.meta.get("bound"))
    return bool(node.meta.get("constant"))


def extract(inputs: Sequence[fx.Node], body: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.Graph:
    """A graph of the nodes `body`, with placeholders for `inputs`, which returns `outputs`."""
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        twins[node] = graph.create_node("placeholder", node.name, (), {}, name=node.name)
        twins[node].meta = {"val": node.meta["val"], "bound": is_fixed(node)}
    for node in body:
        args: Any = fx.map_arg(node.args, twins.__getitem__)  # pyright: ignore[reportPrivateImportUsage]
        kwargs: Any = fx.map_arg(node.kwargs, twins.__getitem__)  # pyright: ignore[reportPrivateImportUsage]
        twins[node] = graph.create_node("call_function", node.target, args, kwargs, name=node.name)
        twins[node].meta = dict(node.meta)
    graph.output(tuple(twins[n] for n in outputs))
    return graph
