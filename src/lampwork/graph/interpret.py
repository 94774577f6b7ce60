"""A graph executed in eager PyTorch: the reference that tests compare with, and what runs where nothing else can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any, cast

import torch
from torch import fx

from lampwork.errors import RuntimeFailure
from lampwork.graph.symbols import map_symbols


def run_graph(graph: fx.Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run the graph on real tensors, one for each placeholder, and give its outputs.

    Values are freed after their last use. Works under autograd. Mutations are not written back: they are outputs.

    Raises:
        RuntimeFailure: the number of inputs is not the number of placeholders.
    """
    values: dict[fx.Node, Any] = {}
    given = iter(inputs)
    last_use = last_uses(graph)
    for node in graph.nodes:
        if node.op == "placeholder":
            value = next(given, None)
            if value is None:
                raise RuntimeFailure(f"{len(inputs)} inputs are too few for the graph")
            values[node] = value
        elif node.op == "output":
            if next(given, None) is not None:
                raise RuntimeFailure(f"{len(inputs)} inputs are too many for the graph")
            return [values[item] for item in cast("tuple[Any, ...]", node.args[0])]
        else:
            values[node] = compute(node, values)
        for dead in last_use.get(node, ()):
            values.pop(dead, None)
    raise RuntimeFailure("the graph has no output node")


def compute(node: fx.Node, values: Mapping[fx.Node, Any], numbers: Mapping[str, int] | None = None) -> Any:
    """The value of one node, from those of the nodes that it uses and of the symbols."""
    args, kwargs = node.args, node.kwargs
    if numbers is not None:
        args, kwargs = map_symbols((args, kwargs), lambda symbolic: symbolic.evaluate(numbers))
    return compute_with(node, args, kwargs, values)


def compute_with(node: fx.Node, args: Any, kwargs: Any, values: Mapping[fx.Node, Any]) -> Any:
    """What the node's operator gives of other arguments than its own, from the values of the nodes among them."""
    target: Any = node.target
    args = resolve(args, values)
    if target is getitem:
        return args[0][args[1]]
    if target is torch.ops.aten.view.default and node.meta.get("whole"):
        target = torch.ops.aten._unsafe_view.default  # which eager does not call a view
    return target(*args, **resolve(kwargs, values))


def last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Node → the values that nothing needs after it."""
    seen: set[fx.Node] = set()
    result: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        if node.op == "output":
            seen.update(node.all_input_nodes)
            continue
        if node not in seen:
            seen.add(node)
            result.setdefault(node, []).append(node)
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                result.setdefault(node, []).append(used)
    return result


def resolve(value: Any, values: Mapping[fx.Node, Any]) -> Any:
    """An argument with the values of nodes in their places."""
    if isinstance(value, fx.Node):
        return values[value]
    if isinstance(value, tuple):
        return tuple(resolve(item, values) for item in cast("tuple[Any, ...]", value))
    if isinstance(value, list):
        return [resolve(item, values) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: resolve(item, values) for key, item in cast("dict[str, Any]", value).items()}
    return value
