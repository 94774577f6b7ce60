"""Copies of graphs: passes work in place, and what was recorded must outlive them."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch.fx.node import map_arg


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A graph of the same nodes, names and order, sharing nothing that a pass may change (meta dicts are copied)."""
    copy = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}

    def twin(node: fx.Node) -> fx.Node:
        return made[node]

    for node in graph.nodes:
        args: Any = map_arg(node.args, twin)
        kwargs: Any = map_arg(node.kwargs, twin)
        made[node] = copy.create_node(node.op, node.target, args, kwargs, node.name)
        made[node].meta = dict(node.meta)
    return copy
