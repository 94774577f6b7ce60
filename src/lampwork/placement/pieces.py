"""Where a graph may be cut: few pieces, each in one module or a few neighbouring ones, with little between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.layouts import of_rows, reads_layout
from lampwork.graph.spec import TensorSpec
from lampwork.partitioning.parts import calls_in, is_fixed
from lampwork.records import record
from lampwork.rewriting.flops import flops
from lampwork.rewriting.schema import is_pinned, packet_name
from lampwork.standard import operator

MOST = 40
"""No graph is cut into more pieces: each is compiled and measured on each device."""

_ANCHORS = frozenset({"sort", "topk", "argsort", "msort", "cumsum", "cumprod", "unique", "searchsorted"})
"""What may be much quicker on one device than on another although it multiplies nothing."""


@record
class Piece:
    """Nodes that run on one device, in graph order. `name`: the modules whose weights they read, or their operators.

    `pinned`: why they run where the caller's tensors are; "" if they may run anywhere.
    """

    name: str
    nodes: tuple[fx.Node, ...]
    pinned: str = ""


def cut(graph: fx.Graph, owners: Mapping[fx.Node, str], home: torch.device, most: int = MOST) -> list[Piece]:
    """The pieces of a graph, in an order in which they can run.

    before:  linear, gelu, linear, add, layer_norm, linear
    after:   [linear, gelu], [linear, add], [layer_norm], [linear]

    A piece begins at an operator that does more arithmetic than it touches elements, or that reads weights; what is
    fused with it follows. If these are too many, the cuts that most bytes cross are given up first, of equal ones those
    between the smallest pieces: the narrow places of a network, such as the boundaries of its blocks, stay.

    Args:
        owners: for each bound placeholder, the name of the module that has the tensor.
        home: the device of the graph's tensors.
    """
    calls = _in_order(graph)
    free = _without_inputs(graph)
    starts = [0]
    for i, node in enumerate(calls):
        if _is_anchor(node):
            while i > 0 and calls[i - 1] in free:
                i -= 1
            starts.append(i)
    starts = _narrowest(sorted(set(starts)), _crossing(calls), [_work(node) for node in calls], most)
    ends = [*starts[1:], len(calls)]
    return [
        Piece(_name(nodes, owners), tuple(nodes), _why_pinned(nodes, home))
        for nodes in (calls[start:end] for start, end in zip(starts, ends, strict=True))
    ]


def _without_inputs(graph: fx.Graph) -> set[fx.Node]:
    """Calls that depend on nothing, such as zeros for a state to begin with."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if is_pinned(node) or is_fixed(node):
            continue
        if all(is_fixed(each) or each in found for each in node.all_input_nodes):
            found.add(node)
    return found


def _in_order(graph: fx.Graph) -> list[fx.Node]:
    """The calls that are not constant, each followed by those that take its results apart. What depends on no input
    comes just before its first user."""
    free = _without_inputs(graph)
    found: dict[fx.Node, None] = {}

    def add(node: fx.Node) -> None:
        for needed in node.all_input_nodes:
            if needed in free and needed not in found:
                add(needed)
        found[node] = None
        for user in node.users:
            if user.target is operator.getitem and user not in found:
                add(user)

    for node in graph.nodes:
        if node.op == "call_function" and not is_fixed(node) and node not in free and node not in found:
            add(node)
    for node in graph.nodes:
        if node in free and node not in found:
            add(node)
    return list(found)


def _is_anchor(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return False
    if packet_name(node.target) in _ANCHORS or any(map(_is_weight, node.all_input_nodes)):
        return True
    operands = [_numel(each) for each in (node, *node.all_input_nodes)]
    return (flops(node) or 0) > 2 * max(operands)


def _is_weight(node: fx.Node) -> bool:
    """A matrix or larger that does not change from call to call: vectors are read by what is fused with others."""
    spec = node.meta.get("val")
    return is_fixed(node) and isinstance(spec, TensorSpec) and len(spec.shape) > 1


def _numel(node: fx.Node) -> int:
    spec = node.meta.get("val")
    return spec.numel if isinstance(spec, TensorSpec) else 0


def _work(node: fx.Node) -> int:
    """A rough measure, to compare pieces: arithmetic, and the elements that are touched."""
    return (flops(node) or 0) + sum(map(_numel, (node, *node.all_input_nodes)))


def _crossing(calls: Sequence[fx.Node]) -> list[int]:
    """For each call, the bytes made before it that it or a later one needs; what the caller gets is needed at the
    end."""
    position = {node: i for i, node in enumerate(calls)}
    steps = [0] * (len(calls) + 1)
    for i, node in enumerate(calls):
        spec = node.meta.get("val")
        if not isinstance(spec, TensorSpec):
            continue
        last = max((position.get(user, len(calls) - 1) for user in node.users), default=i)
        steps[i + 1] += spec.nbytes
        steps[last + 1] -= spec.nbytes
    found: list[int] = []
    live = 0
    for step in steps[:-1]:
        live += step
        found.append(live)
    return found


def _narrowest(starts: Sequence[int], crossing: Sequence[int], work: Sequence[int], most: int) -> list[int]:
    """At most `most` of the starts, the first among them."""
    kept = list(starts)
    ends = [*kept[1:], len(work)]
    sizes = [sum(work[start:end]) for start, end in zip(kept, ends, strict=True)]
    while len(kept) > most:
        worst = max(range(1, len(kept)), key=lambda i: (crossing[kept[i]], -(sizes[i - 1] + sizes[i])))
        sizes[worst - 1] += sizes.pop(worst)
        del kept[worst]
    return kept


def _name(nodes: Sequence[fx.Node], owners: Mapping[fx.Node, str]) -> str:
    found: dict[str, None] = {}
    for node in nodes:
        found.update(dict.fromkeys(_owners_of(node, owners)))
    modules = [name for name in found if name]
    if modules:
        return _span(modules[0], modules[-1])
    names = dict.fromkeys(packet_name(node.target) for node in nodes if calls_in([node]))
    shown = ", ".join(list(names)[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _span(first: str, last: str) -> str:
    """Two names with what they have in common said once: "layer.0 (self_attn to norm)"."""
    if first == last:
        return first
    a, b = first.split("."), last.split(".")
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if common in (0, len(a), len(b)):
        return f"{first} to {last}"
    return f"{'.'.join(a[:common])} ({'.'.join(a[common:])} to {'.'.join(b[common:])})"


def _owners_of(node: fx.Node, owners: Mapping[fx.Node, str]) -> list[str]:
    """The modules of the weights that a node reads, itself or through what is computed from weights alone."""
    found: list[str] = []
    waiting = [each for each in reversed(node.all_input_nodes) if is_fixed(each)]
    while waiting:
        each = waiting.pop()
        if each in owners:
            found.append(owners[each])
        waiting.extend(reversed(each.all_input_nodes))
    return found


def _why_pinned(nodes: Sequence[fx.Node], home: torch.device) -> str:
    for node in nodes:
        if node.meta.get("random"):
            return f"{packet_name(node.target)} draws from the generator of {home}"
        if is_pinned(node):
            return f"{packet_name(node.target)} has an effect outside of the graph"
        if reads_layout(node) and not of_rows(node):
            return f"{packet_name(node.target)} may read memory as it lies on {home}"
        device = cast(Any, node.kwargs.get("device"))
        if device is not None and torch.device(device) not in (home, torch.device(home.type)):
            return f"{packet_name(node.target)} names the device {device}"
    return ""
