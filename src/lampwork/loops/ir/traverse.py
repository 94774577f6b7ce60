"""The one traversal of the loop language: `walk` visits, `rewrite` rebuilds.

The *parts* of a node are the nodes (expressions, axes, reducers, statements) and indices that its fields hold. Which
fields these are is read off their annotations, so a new kind of node in nodes.py needs nothing here. What an index is
taken from (`Indirect.value`) is part of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import is_
from typing import Any, Self, TypeVar

from lampwork.loops.ir.polynomial import Index

_NODES = frozenset({"Expr", "Load", "Reducer", "Stmt"})
_PLACES = frozenset({"Index", "Axis"})
_PARTS = _NODES | _PLACES


class Node:
    """What nodes.py is made of: records that can be walked and rebuilt.

    The methods are compiled from the annotations, as a dataclass's are: expressions are walked often.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        words = {name: frozenset(re.findall(r"\w+", kind)) for name, kind in cls.__annotations__.items()}
        listed = {
            "nodes": [_listed(name, kinds) for name, kinds in words.items() if kinds & _NODES],
            "places": [_listed(name, kinds, "extent") for name, kinds in words.items() if kinds & _PLACES],
            "parts": [_listed(name, kinds) for name, kinds in words.items() if kinds & _PARTS],
        }
        for name, items in listed.items():
            setattr(cls, name, eval(f"lambda node: [{', '.join(items)}]"))
        fields = ", ".join(_rebuilt(name, kinds) for name, kinds in words.items())
        cls.rebuilt = eval(f"lambda node, parts: node.__class__({fields})", {"islice": islice})

    def nodes(self) -> list[Any]:
        """The expressions, reducers and statements directly inside, in order."""
        raise NotImplementedError

    def places(self) -> list[Index]:
        """The indices directly inside, and the extents of axes, in order."""
        raise NotImplementedError

    def parts(self) -> list[Any]:
        """All that `rewrite` changes: nodes, indices and axes directly inside, in order."""
        raise NotImplementedError

    def rebuilt(self, parts: Iterator[Any]) -> Self:
        """The node with other `parts`."""
        raise NotImplementedError


def _listed(name: str, kinds: frozenset[str], of_axis: str = "") -> str:
    """What a field holds, as items of a list."""
    of_each = f".{of_axis}" if of_axis and "Axis" in kinds else ""
    if "tuple" in kinds:
        return f"*[each{of_each} for each in node.{name}]" if of_each else f"*node.{name}"
    if "None" in kinds:
        return f"*(() if node.{name} is None else (node.{name}{of_each},))"
    return f"node.{name}{of_each}"


def _rebuilt(name: str, kinds: frozenset[str]) -> str:
    """A field as an argument of the constructor, taken from `parts` if it holds some."""
    if not kinds & _PARTS:
        return f"node.{name}"
    if "tuple" in kinds:
        return f"tuple(islice(parts, len(node.{name})))"
    return f"None if node.{name} is None else next(parts)" if "None" in kinds else "next(parts)"


Part = Node | Index
P = TypeVar("P", bound=Part)


class Expression(Node):
    """A node with a value. It offers what an `Index` that is taken from it wants to know (polynomial.Data)."""

    __slots__ = ()

    def indices(self) -> list[Index]:
        """Every index in it, also in the data of others."""
        return [index for node in walk(self) for index in node.places()]

    def map_indices(self, change: Callable[[Index], Index]) -> Self:
        """The expression with each index changed. An index comes with its data changed already."""
        return rewrite(self, {Index: change})


class Statement(Node):
    """A node of a kernel's body."""

    __slots__ = ()


def walk(*roots: Node) -> list[Node]:
    """The roots and all nodes inside of them, also those that indices are taken from: outer before inner, in order. A
    node that is shared comes at each of its places."""
    found: list[Node] = []
    todo = [*reversed(roots)]
    while todo:
        node = todo.pop()
        found.append(node)
        for index in node.places():
            if not index.is_flat:
                todo += reversed(index.data())
        below = node.nodes()
        if below:
            todo += below[::-1]
    return found


def walk_once(
    *roots: Node, into: Callable[[Node], bool] = lambda node: True, data: bool = True
) -> Iterator[Node]:
    """`walk`, but a node that is shared (by identity) comes once.

    Args:
        into: whether to look inside of a node.
        data: whether what indices are taken from is inside.
    """
    seen: set[int] = set()
    todo = [*reversed(roots)]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if not into(node):
            continue
        if data:
            todo += [value for index in node.places() for value in index.data()][::-1]
        todo += node.nodes()[::-1]


def rewrite(root: P, change: Mapping[type[Any], Callable[[Any], Any]]) -> P:
    """The part with each part inside of it, and itself, replaced by what `change` of its class makes of it, bottom up:
    what `change` is given has its parts replaced.

    before: x[i] + 1, {Load: y[i] for x[i]}        after: y[i] + 1

    Nodes in which nothing changes are kept as they are; what is shared by identity is changed once.
    """
    on_index = change.get(Index)
    done: dict[int, Any] = {}

    def visit(part: Any) -> Any:
        if part.__class__ is Index:
            if not part.is_flat:
                part = part.map_data(visit)
            return part if on_index is None else on_index(part)
        known = done.get(id(part))
        if known is not None:
            return known
        before = part.parts()
        after = [visit(each) for each in before]
        known = part if all(map(is_, after, before)) else part.rebuilt(iter(after))
        own = change.get(part.__class__)
        if own is not None:
            known = own(known)
        done[id(part)] = known
        return known

    return visit(root)
