"""Copies of graphs: passes work in place, and what was recorded must outlive them."""

from __future__ import annotations

from torch import fx

from lampwork.graph.nodes import copy_node


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A graph of the same nodes, names and order, sharing nothing that a pass may change (meta dicts are copied)."""
    copy = fx.Graph()
    _add_nodes(graph, copy)
    return copy


def restore_graph(graph: fx.Graph, kept: fx.Graph) -> None:
    """Make `graph` a copy of `kept` again, in place; all its nodes are new."""
    for node in reversed(list(graph.nodes)):
        node.args = ()
        node.kwargs = {}
    for node in reversed(list(graph.nodes)):
        graph.erase_node(node)
    _add_nodes(kept, graph)


def _add_nodes(graph: fx.Graph, copy: fx.Graph) -> None:
    made: dict[fx.Node, fx.Node] = {}

    def twin(node: fx.Node) -> fx.Node:
        return made[node]

    for node in graph.nodes:
        made[node] = copy_node(copy, node, twin)
