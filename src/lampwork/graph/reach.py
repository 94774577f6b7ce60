"""What a node is computed from, and what depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx


def reached(starts: Iterable[fx.Node]) -> set[fx.Node]:
    """What depends on one of these nodes, and they themselves."""
    return _closure(starts, lambda node: node.users)


def needed(ends: Iterable[fx.Node]) -> set[fx.Node]:
    """What these nodes are computed from, and they themselves."""
    return _closure(ends, lambda node: node.all_input_nodes)


def _closure(starts: Iterable[fx.Node], following: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    work = list(starts)
    while work:
        node = work.pop()
        if node not in found:
            found.add(node)
            work.extend(following(node))
    return found
