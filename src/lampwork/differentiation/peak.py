"""How much memory the halves of a training step take at most, estimated from their graphs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from lampwork.differentiation.split import Split
from lampwork.graph.spec import TensorSpec
from lampwork.rewriting.apply.aliasing import storage_root


def estimated_peak(halves: Split) -> int:
    """The most bytes that live at once, gradients among them, but no inputs and parameters. The backwards of several
    segments count as one after the other, each with all that is saved."""
    peaks = [_peak(halves.forward, ())]
    total = sum(spec.nbytes for spec in halves.saved.values())
    for backward in halves.backwards.values():
        pairs = zip(backward.inputs, _placeholders(backward.graph), strict=True)
        saved = [node for given, node in pairs if given.kind == "saved"]
        others = total - sum(_nbytes(node) for node in saved)
        peaks.append(others + _peak(backward.graph, saved))
    return max(peaks)


def _peak(graph: fx.Graph, given: Collection[fx.Node]) -> int:
    """The most bytes of results that live at once, and of the placeholders `given`, which go after their last use."""
    nodes = list(graph.nodes)
    last: dict[fx.Node, int] = {}
    for at, node in enumerate(nodes):
        for used in node.all_input_nodes:
            last[storage_root(used)] = at
    ends: dict[int, list[fx.Node]] = {}
    for node, at in last.items():
        ends.setdefault(at, []).append(node)
    living = dict.fromkeys(given)
    size = most = sum(map(_nbytes, living))
    for at, node in enumerate(nodes):
        if node in last and node.op == "call_function" and not _is_fused(node):
            living[node] = None
            size += _nbytes(node)
            most = max(most, size)
        for dead in ends.get(at, ()):
            if dead in living:
                del living[dead]
                size -= _nbytes(dead)
    return most


def _placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _is_fused(node: fx.Node) -> bool:
    """Whether the value is computed where it is used."""
    target: Any = node.target
    return len(node.users) == 1 and torch.Tag.pointwise in getattr(target, "tags", ())


def _nbytes(node: fx.Node) -> int:
    """Bytes of memory of its own; those of several results are with the items."""
    spec = node.meta.get("val")
    if not isinstance(spec, TensorSpec) or storage_root(node) is not node:
        return 0
    return spec.nbytes
