"""Graphs with symbolic sizes, with numbers put in for the symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from lampwork.graph.copying import copy_graph
from lampwork.graph.spec import with_sizes
from lampwork.graph.symbols import Scope, Symbolic, SymbolicFloat, SymbolicInt, map_symbols


def concrete_graph(graph: fx.Graph, values: Mapping[str, int]) -> fx.Graph:
    """A copy of the graph for these values of its symbols.

    before: view = aten.view(x, [s0, 12, 64])       after, s0 = 5: view = aten.view(x, [5, 12, 64])
    """
    copy = copy_graph(graph)

    def number(symbolic: Symbolic) -> int | float:
        return symbolic.evaluate(values)

    for node in copy.nodes:
        replace_sizes(node, number)
    return copy


def known_sizes(graph: fx.Graph, values: Mapping[str, int]) -> fx.Graph:
    """As `concrete_graph`, for some of the symbols: what depends on others stays as it is."""
    copy = copy_graph(graph)

    def number(symbolic: Symbolic) -> Any:
        return symbolic.evaluate(values) if symbolic.symbols() <= values.keys() else symbolic

    for node in copy.nodes:
        replace_sizes(node, number)
    return copy


def canonical_sizes(graph: fx.Graph, scope: Scope) -> None:
    """Where two symbols turned out to be one number, write it one way everywhere."""

    def canonical(number: Symbolic) -> Any:
        if isinstance(number, SymbolicFloat):
            return number
        index = scope.canonical(number.index)
        value = index.as_int()
        return SymbolicInt(scope, index, number.hint) if value is None else value

    for node in graph.nodes:
        replace_sizes(node, canonical)


def replace_sizes(node: fx.Node, number: Callable[[Any], Any]) -> None:
    """Replace the symbolic ints in a node's arguments and in its spec."""
    if node.op == "call_function":
        node.args = map_symbols(node.args, number)
        if node.kwargs:
            node.kwargs = map_symbols(node.kwargs, number)
    for key in ("val", "operands"):
        found = node.meta.get(key)
        if found is not None:
            node.meta[key] = with_sizes(found, number)


def spec_at(val: Any, values: Mapping[str, int]) -> Any:
    """A spec, or nested tuples of specs, with these values of its symbols."""
    return with_sizes(val, lambda size: size.evaluate(values))


def symbol_names(graph: fx.Graph) -> frozenset[str]:
    """The symbols that sizes and arguments in the graph depend on."""
    found: set[str] = set()

    def note(symbolic: Symbolic) -> Symbolic:
        found.update(symbolic.symbols())
        return symbolic

    for node in graph.nodes:
        map_symbols((node.args, node.kwargs), note)
        with_sizes(node.meta.get("val"), note)
    return frozenset(found)


def has_symbols(graph: fx.Graph) -> bool:
    """Whether a size or an argument in the graph is symbolic."""
    return any(map(is_symbolic, graph.nodes))


def is_symbolic(node: fx.Node) -> bool:
    """Whether a size or an argument of the node is symbolic."""
    found = False

    def note(symbolic: Symbolic) -> Any:
        nonlocal found
        found = True
        return symbolic

    map_symbols((node.args, node.kwargs), note)
    with_sizes(node.meta.get("val"), note)
    return found


def scope_of(graph: fx.Graph) -> Scope | None:
    """Where the symbols of a graph belong; None if it has none."""
    found: Scope | None = None

    def note(symbolic: Symbolic) -> Symbolic:
        nonlocal found
        found = symbolic.scope
        return symbolic

    for node in graph.nodes:
        map_symbols((node.args, node.kwargs), note)
        with_sizes(node.meta.get("val"), note)
        if found is not None:
            return found
    return None
