"""What every graph obeys between stages."""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any, cast

import torch
from torch import fx

from lampwork.errors import InvalidGraphError
from lampwork.graph.layouts import operands, reads_alike
from lampwork.graph.spec import TensorSpec


def verify(graph: fx.Graph) -> None:
    """Check the contract of graphs: operators only, functional, typed by specs, in order, with flat outputs. All
    operators say where they come from, or none does, in a graph that was not captured.

    Raises:
        InvalidGraphError: naming the first node that breaks it.
    """
    seen: set[fx.Node] = set()
    bound = False
    body = False
    ended = False
    for node in graph.nodes:
        _require(not ended, node, "follows the output")
        for used in node.all_input_nodes:
            _require(used in seen, node, f"uses {used.name}, which does not come before it")
        if node.op == "placeholder":
            _require(not body, node, "is a placeholder behind the first operator")
            is_bound = bool(node.meta.get("bound"))
            _require(is_bound or not bound, node, "is an input behind a bound placeholder")
            bound = bound or is_bound
            _require(isinstance(node.meta.get("val"), TensorSpec), node, "has no TensorSpec")
        elif node.op == "call_function":
            body = True
            _verify_call(node)
            _verify_layouts(node)
        elif node.op == "output":
            ended = True
            _verify_output(node)
        else:
            raise _error(node, f"is a {node.op}")
        seen.add(node)
    if not ended:
        raise InvalidGraphError("the graph has no output node")
    _verify_origins(graph)


def _verify_origins(graph: fx.Graph) -> None:
    calls = [node for node in graph.nodes if node.op == "call_function"]
    nowhere = [node for node in calls if "origin" not in node.meta]
    if 0 < len(nowhere) < len(calls):
        raise _error(nowhere[0], "has no origin, while others have one")


def _verify_call(node: fx.Node) -> None:
    target = node.target
    val = node.meta.get("val")
    if target is getitem:
        base, index = node.args
        _require(isinstance(base, fx.Node) and isinstance(index, int), node, "is a getitem of no node")
        parts = cast(fx.Node, base).meta.get("val")
        _require(isinstance(parts, tuple), node, "takes an item of what has one result")
        count = len(cast("tuple[Any, ...]", parts))
        _require(0 <= cast(int, index) < count, node, f"takes item {index} of {count}")
        _require(
            val == cast("tuple[Any, ...]", parts)[cast(int, index)], node, "has another spec than its item"
        )
        return
    _require(isinstance(target, torch._ops.OpOverload), node, f"calls {target}, which is no operator")
    results = cast("tuple[Any, ...]", val) if isinstance(val, tuple) else (val,)
    known = all(isinstance(v, TensorSpec) or (v is None and v is not val) for v in results)
    _require(known, node, "has no TensorSpec")
    schema = cast(Any, target)._schema
    _require(
        not schema.is_mutable or bool(node.meta.get("effect")),
        node,
        f"calls {target}, which writes to its arguments",
    )
    count = len(schema.arguments)
    _require(len(node.args) <= count, node, f"has {len(node.args)} arguments for {count} parameters")
    names = {argument.name for argument in schema.arguments}
    for name in node.kwargs:
        _require(name in names, node, f"has an argument {name!r} that {target} does not take")


def _verify_layouts(node: fx.Node) -> None:
    """What draws random numbers, or looks at memory, reads the order of elements that it was recorded with."""
    recorded: tuple[Any, ...] | None = node.meta.get("operands")
    if recorded is None:
        return
    for operand, was in zip(operands(node), recorded, strict=True):
        val = operand.meta["val"]
        if isinstance(was, TensorSpec) and isinstance(val, TensorSpec):
            _require(
                reads_alike(node, val, was),
                node,
                f"reads {operand.name} as {val}, but was recorded with {was}",
            )


def _verify_output(node: fx.Node) -> None:
    _require(len(node.args) == 1 and isinstance(node.args[0], tuple), node, "does not return a tuple")
    for value in cast("Sequence[Any]", node.args[0]):
        _require(isinstance(value, fx.Node), node, f"returns {value!r}, which is no node")
        _require(isinstance(value.meta.get("val"), TensorSpec), node, f"returns {value.name}, no tensor")


def _require(condition: bool, node: fx.Node, text: str) -> None:
    if not condition:
        raise _error(node, text)


def _error(node: fx.Node, text: str) -> InvalidGraphError:
    return InvalidGraphError(f"node {node.name} {text}", location=node.meta.get("location"))
