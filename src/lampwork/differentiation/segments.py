"""Where the autograd graph of a region's results is cut, so that it is eager's as far as a caller can hold on to it.

A caller can name tensors that a region returns or stores: hooks, `retain_grad()` and `torch.autograd.grad` must find
each of them on the way from later results to earlier ones. So every such tensor ends a *segment*, a stretch of the
graph with an autograd node of its own, whose sources are the tensors that the segment starts from: inputs, weights,
and results of earlier segments. Views are made by eager from what they are views of.

before: h = tanh(x @ w); y = h.square().sum(); return h, y
after:  segment 0: h from (x, w)        segment 1: y from (h,)

What several segments share becomes a segment too, though its result is no tensor that the caller sees: then each part
of the graph is differentiated once.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import getitem
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.rewriting.apply import aliasing

aten = torch.ops.aten

_COMPOSITES = frozenset(
    op
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for op in (getattr(aten, name).input, getattr(aten, name).data)
)
"""Operators of several results that are made of others, each with nodes of its own."""


@record
class Segment:
    """`results`: the nodes that it computes for others; several only if one operator gives them all.
    `sources`: what it is differentiated by, in the order in which eager's graph comes to them, the last one first."""

    number: int
    results: tuple[fx.Node, ...]
    sources: tuple[fx.Node, ...]
    name: str

    @property
    def is_composite(self) -> bool:
        """Whether eager has a node for each of several results, as of a recurrent layer: hooks on one that nobody reads
        hear nothing."""
        first = self.results[0]
        return _is_item(first) and cast(Any, first.args[0]).target in _COMPOSITES


@record
class Segments:
    """The cuts of one graph.

    `order`: segments and views, in the order in which their tensors come to be.
    `label`: differentiable node → number of the segment that computes it.
    `cuts`: results of segments. `views`: nodes that eager makes of results of segments or of inputs.
    `results`: the nodes that the graph returns. `roots`: cuts whose tensors the caller can reach.
    `detached`: positions in `results` that are cut off from a tensor that requires grad, which itself is not returned.
    """

    order: tuple[Segment | fx.Node, ...]
    segments: tuple[Segment, ...]
    label: dict[fx.Node, int]
    cuts: frozenset[fx.Node]
    views: frozenset[fx.Node]
    results: tuple[fx.Node, ...]
    roots: tuple[fx.Node, ...]
    detached: tuple[int, ...]


def requires_grad(node: fx.Node) -> bool:
    """Whether the node's value, or one of its several, requires grad."""
    val = node.meta["val"]
    return (
        val.requires_grad
        if isinstance(val, TensorSpec)
        else any(spec is not None and spec.requires_grad for spec in val)
    )


def seen_from(node: fx.Node) -> fx.Node | None:
    """What the node's value is a view of for autograd. What was written through a view is the memory's content, however
    it was put together, and a tensor that was reshaped in place is no view."""
    return None if node.meta.get("overwrites") or node.meta.get("whole") else aliasing.view_base(node)


def memory_of(node: fx.Node) -> fx.Node:
    """The node that owns the memory `node` lives in: a placeholder, a fresh result, or what was written to one."""
    while (base := seen_from(node)) is not None:
        node = base
    return node


def returned_roots(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """The differentiable values in memory of their own that the graph returns, or returns views of."""
    found: dict[fx.Node, None] = {}
    for node in _results(graph):
        root = memory_of(node)
        if requires_grad(node) and root.op != "placeholder":
            found[root] = None
    return tuple(found)


def cut(graph: fx.Graph, also: Collection[fx.Node] = (), joined: bool = False) -> Segments:
    """Divide a functional graph, whose specs say what requires grad, into segments. `also`: tensors at which to cut
    besides, of which the caller sees nothing. `joined`: all results are one segment's, as nothing in the graph is
    computed from one of them."""
    results = _results(graph)
    roots = returned_roots(graph)
    views, detached = _returned_views(results, frozenset(roots))
    label: dict[fx.Node, int] = {}
    cuts: set[fx.Node] = set()
    starts: list[tuple[fx.Node, ...]] = []
    asked: dict[fx.Node, set[int]] = {}
    for node in reversed(graph.nodes):
        if node.op != "call_function" or node in views or not requires_grad(node):
            continue
        wanted = {label[user] for user in node.users if user in label}
        if _is_item(node):
            asked[node] = wanted
            if node in roots or len(wanted) > 1 or (wanted and node in also):
                cuts.add(node)
            continue
        items = [user for user in node.users if user in asked and (asked[user] or user in cuts)]
        for item in items:
            wanted |= asked[item]
        several = not isinstance(node.meta["val"], TensorSpec)
        ends = any(item in cuts for item in items) if several else node in roots or (wanted and node in also)
        if not wanted and not ends:
            continue
        if joined:
            label.update(dict.fromkeys((node, *items), 0))
            continue
        if ends or len(wanted) > 1:
            made = tuple(reversed(items)) if several else (node,)
            cuts.update(made)
            label[node] = len(starts)
            starts.append(made)
        else:
            label[node] = wanted.pop()
        label.update(dict.fromkeys(items, label[node]))
    if joined and label:
        cuts.update(root for root in roots if root in label)
        starts.append(tuple(root for root in roots if root in label))
    # Numbered from the end of the graph; they are wanted from its start.
    last = len(starts) - 1
    label = {node: last - number for node, number in label.items()}
    sources = _sources(graph, label, cuts, views, len(starts))
    segments = tuple(
        Segment(i, made, tuple(sources[i]), _name(made[0])) for i, made in enumerate(reversed(starts))
    )
    by_first = {segment.results[0]: segment for segment in segments}
    order: list[Segment | fx.Node] = []
    for node in graph.nodes:
        if node in by_first:
            order.append(by_first[node])
        elif node in views:
            order.append(node)
    return Segments(
        tuple(order), segments, label, frozenset(cuts), frozenset(views), results, roots, detached
    )


def _results(graph: fx.Graph) -> tuple[fx.Node, ...]:
    return cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])


def _is_item(node: fx.Node) -> bool:
    return node.target is getitem


def _returned_views(
    results: tuple[fx.Node, ...], roots: frozenset[fx.Node]
) -> tuple[set[fx.Node], tuple[int, ...]]:
    """The views on the way from returned views to what owns their memory; and which results are only cut off."""
    views: set[fx.Node] = set()
    detached: list[int] = []
    for number, node in enumerate(results):
        chain: list[fx.Node] = []
        root = node
        while (base := seen_from(root)) is not None:
            chain.append(root)
            root = base
        if not chain or not any(requires_grad(item) for item in (*chain, root)):
            continue
        if root.op == "placeholder" or root in roots:
            views.update(chain)
        else:
            detached.append(number)
    return views, tuple(detached)


def _sources(
    graph: fx.Graph, label: dict[fx.Node, int], cuts: set[fx.Node], views: set[fx.Node], count: int
) -> list[list[fx.Node]]:
    found: list[dict[fx.Node, None]] = [{} for _ in range(count)]
    for node in graph.nodes:
        if node not in label or _is_item(node):
            continue
        for used in reversed(_edges(node)):
            if requires_grad(used) and (used.op == "placeholder" or used in cuts or used in views):
                found[label[node]].setdefault(used)
    return [list(nodes) for nodes in found]


def _edges(node: fx.Node) -> list[fx.Node]:
    """What the node uses, in the order of the edges of eager's autograd node."""
    used = list(node.all_input_nodes)
    if node.target is aten.linear.default and len(used) == 3:
        return [used[2], used[0], used[1]]  # it is addmm(bias, input, weight)
    return used


def _name(node: fx.Node) -> str:
    source: Any = node.args[0] if _is_item(node) else node
    words = str(source.target._opname if hasattr(source.target, "_opname") else source.target.__name__)
    return "".join(word.capitalize() for word in words.split("_")) + "Backward0"
