"""Functional ATen graphs as JSON: nodes, arguments, specs, and what the compiler reads in their meta; the symbols that
they have. Not where nodes come from: that is the user's, and changes nothing of what is compiled.

What is read is verified (`graph.verify`), and has the `structural_hash` of what was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import fx

from lampwork.errors import InvalidGraphError, SerialError, text_of
from lampwork.graph.compiled_masks import COMPILED_ONLY
from lampwork.graph.concrete import scope_of
from lampwork.graph.symbols import Scope, SymbolicFloat, SymbolicInt
from lampwork.graph.verify import verify
from lampwork.serial.arguments import nested_from_json, nested_to_json
from lampwork.serial.specs import (
    scope_from_json,
    scope_to_json,
    spec_from_json,
    spec_to_json,
    symbolic_from_json,
    symbolic_to_json,
)
from lampwork.serial.values import (
    expected,
    inside,
    items,
    mapping,
    only,
    plain_from_json,
    plain_to_json,
    text,
    whole,
)
from lampwork.standard import operator

FLAGS = ("bound", "random", "effect", "constant", "opaque", "whole", "received", COMPILED_ONLY)
"""What is so of a node, or is not."""
NAMES = ("overwrites", "lies_in", "new_versions")
"""What names other nodes."""
SPECS = ("operands", "eager_val")
OF_OUTPUT = "n_shown"
META = frozenset({"val", *FLAGS, *NAMES, *SPECS, OF_OUTPUT})
"""All of a node's meta that is written."""

_NODE = frozenset({"op", "name"})
_GETITEM = "getitem"


def graph_to_json(graph: fx.Graph) -> dict[str, Any]:
    """A graph.

    Raises:
        SerialError: a node, or an argument, has no serial form.
    """
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    scope = scope_of(graph)

    def leaf(value: Any) -> Any:
        if isinstance(value, fx.Node):
            return {"n": numbers[value]}
        if isinstance(value, (SymbolicInt, SymbolicFloat)):
            return symbolic_to_json(value)
        if type(value) is slice:
            return {"slice": [argument(part) for part in (value.start, value.stop, value.step)]}
        return plain_to_json(value)

    def argument(value: Any) -> Any:
        return nested_to_json(value, leaf)

    def written(node: fx.Node) -> dict[str, Any]:
        found: dict[str, Any] = {"op": node.op, "name": node.name}
        if node.op == "call_function":
            found["op"] = "call"
            found["target"] = target_to_json(node.target)
        if node.op != "placeholder":
            found["args"] = [argument(value) for value in node.args]
        if node.kwargs:
            found["kwargs"] = [[key, argument(node.kwargs[key])] for key in sorted(node.kwargs)]
        if "val" in node.meta:
            found["val"] = spec_to_json(node.meta["val"])
        found.update(meta_to_json(node.meta))
        return found

    return {
        "scope": None if scope is None else scope_to_json(scope),
        "nodes": [inside(node.name, lambda node=node: written(node)) for node in graph.nodes],
    }


def target_to_json(target: Any) -> str:
    """The qualified name of an operator, with its overload."""
    if isinstance(target, torch._ops.OpOverload):
        name = target.name()
        return name if "." in name.partition("::")[2] else f"{name}.default"
    if target is operator.getitem:
        return _GETITEM
    raise SerialError(f"the function {target!r} is no operator, and has no serial form")


def meta_to_json(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What is written of a node beside its value's spec."""
    found: dict[str, Any] = {}
    if flags := [name for name in FLAGS if meta.get(name)]:
        found["flags"] = flags
    for name in NAMES:
        if name in meta:
            value = meta[name]
            found[name] = list(value) if isinstance(value, tuple) else value
    for name in SPECS:
        if name in meta:
            found[name] = spec_to_json(meta[name])
    if OF_OUTPUT in meta:
        found[OF_OUTPUT] = meta[OF_OUTPUT]
    return found


def graph_from_json(value: Any) -> fx.Graph:
    """The graph.

    Raises:
        SerialError: it is damaged, or needs an operator that torch does not have.
    """
    try:
        found = mapping(value, frozenset({"scope", "nodes"}))
        scope = None if found["scope"] is None else inside("scope", lambda: scope_from_json(found["scope"]))
        reading = _Reading(scope)
        for number, node in enumerate(items(found["nodes"])):
            inside(f"nodes[{number}]", lambda node=node: reading.node(node))
        verify(reading.graph)
    except RecursionError as error:
        raise SerialError("a graph was expected, not one nested so deep") from error
    except InvalidGraphError as error:
        raise SerialError(f"a valid graph was expected: {error.cause}") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # What verifies looks at arguments as operators take them; these may be anything.
        raise SerialError(f"a valid graph was expected: {text_of(error)}") from error
    return reading.graph


class _Reading:
    """A graph while it is read."""

    def __init__(self, scope: Scope | None) -> None:
        self.graph = fx.Graph()
        self._has_scope = scope is not None
        self._scope = Scope() if scope is None else scope
        self._nodes: list[fx.Node] = []
        self._names: set[str] = set()

    def node(self, value: Any) -> None:
        keys = _NODE | {"target", "args", "kwargs", "val", "flags", *NAMES, *SPECS, OF_OUTPUT}
        found = mapping(value, _NODE, keys)
        op, name = text(found["op"]), text(found["name"])
        if not name.isidentifier() or name in self._names:
            raise expected("a name that no node has", name)
        if op == "placeholder":
            if found.keys() & {"target", "args", "kwargs"}:
                raise expected("a placeholder without arguments", sorted(found))
            made = self.graph.create_node("placeholder", name, (), {}, name=name)
        elif op == "call":
            target = target_from_json(found.get("target"))
            made = self._call("call_function", target, found, name)
        elif op == "output":
            made = self._call("output", "output", found, name)
        else:
            raise expected("placeholder, call or output", op)
        if made.name != name:
            raise expected("a name that torch leaves as it is", name)
        self._names.add(name)
        self._nodes.append(made)
        self._read_meta(made, found)

    def _call(self, op: str, target: Any, found: dict[str, Any], name: str) -> fx.Node:
        args = tuple(self._argument(argument) for argument in items(found.get("args")))
        kwargs = {
            text(key): self._argument(argument)
            for key, argument in (items(pair, 2) for pair in items(found.get("kwargs", [])))
        }
        made = self.graph.create_node(op, target, (), {}, name=name)
        made.args, made.kwargs = args, kwargs
        return made

    def _argument(self, value: Any) -> Any:
        return nested_from_json(value, self._leaf)

    def _leaf(self, value: Any) -> Any:
        if type(value) is dict:
            key, inner = only(cast(Any, value), "an argument")
            if key == "n":
                return self._nodes[whole(inner, range(len(self._nodes)), "the number of an earlier node")]
            if key in ("i", "x"):
                return symbolic_from_json(cast(Any, value), self._scope)
            if key == "slice":
                return slice(*(self._argument(part) for part in items(inner, 3)))
        return plain_from_json(value)

    def _read_meta(self, node: fx.Node, found: dict[str, Any]) -> None:
        meta: dict[str, Any] = node.meta
        if "val" in found:
            meta["val"] = spec_from_json(found["val"], self._scope)
        for name in items(found.get("flags", [])):
            if name not in FLAGS:
                raise expected(f"one of {', '.join(FLAGS)}", name)
            meta[name] = True
        for name in NAMES:
            if name in found:
                value = found[name]
                meta[name] = tuple(map(text, items(value))) if type(value) is list else text(value)
        for name in SPECS:
            if name in found:
                meta[name] = spec_from_json(found[name], self._scope)
        if OF_OUTPUT in found:
            meta[OF_OUTPUT] = whole(found[OF_OUTPUT], range(len(self._nodes) + 1))


def target_from_json(value: Any) -> Any:
    """The operator; SerialError where torch has none of this name."""
    if value == _GETITEM:
        return operator.getitem
    namespace, _, rest = text(value).partition("::")
    name, _, overload = rest.partition(".")
    found: Any = torch.ops
    for part in (namespace, name, overload):
        found = getattr(found, part, None) if part.isidentifier() else None
    if not isinstance(found, torch._ops.OpOverload):
        raise expected("an operator that torch has", value)
    return found
