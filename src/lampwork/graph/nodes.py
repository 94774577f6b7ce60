"""New nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx
from torch.fx.node import map_arg

from lampwork.graph.origin import Place, stamp


def add_call(
    graph: fx.Graph,
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    name: str,
    place: Place,
) -> fx.Node:
    """A new call, and where it comes from: most often `place_of` the node whose result it gives."""
    node = _add(graph, "call_function", target, args, kwargs, name)
    stamp(node, place)
    return node


def _add(
    graph: fx.Graph, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str
) -> fx.Node:
    """`graph.create_node`, in an eighth of its time: it looks at every leaf of the arguments for torch's symbolic
    numbers, to warn of them, which our graphs do not hold. Arguments that are set later it does not look at."""
    node = graph.create_node(op, target, (), {}, name=name)
    node.args = args
    if kwargs:
        node.kwargs = dict(kwargs)
    return node


def copy_node(graph: fx.Graph, node: fx.Node, twin: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """A node of `graph` like `node` of another one, whose inputs are the twins of its inputs. The dict of meta is a
    copy."""
    args: Any = map_arg(node.args, twin)
    kwargs: Any = map_arg(node.kwargs, twin)
    made = _add(graph, node.op, node.target, args, kwargs, node.name)
    made.meta = dict(node.meta)
    return made
