"""Helpers of the rewrite, pass and partition tests: record a function, print its structure, run a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from lampwork.errors import RewriteError
from lampwork.graph.record import Recorder
from lampwork.plugins.context import PassContext
from lampwork.rewriting.schema import bind, packet_name


@dataclass(slots=True)
class Forgiving(PassContext):
    """Notes the faults of rewrites in place of raising them."""

    faults: list[Any] = field(default_factory=list[Any])

    def fault(self, error: RewriteError) -> None:
        self.faults.append(error)


def record(fn: Callable[..., Any], *inputs: torch.Tensor, bound: Sequence[torch.Tensor] = ()) -> fx.Graph:
    """The graph of fn(*inputs, *bound)."""
    with torch.no_grad(), Recorder() as rec:
        args = [rec.input(t, f"x{i}") for i, t in enumerate(inputs)]
        args += [rec.input(t, f"w{i}", bound=True) for i, t in enumerate(bound)]
        result = fn(*args)
    return rec.finish(list(result) if isinstance(result, tuple | list) else [result]).graph


def run(graph: fx.Graph, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of `graph`, run op by op."""
    values: dict[fx.Node, Any] = {}
    rest = iter(inputs)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(rest)
        elif node.op == "output":
            return [values[n] for n in node.args[0]]
        else:
            args = fx.map_arg(node.args, values.__getitem__)
            kwargs = fx.map_arg(node.kwargs, values.__getitem__)
            values[node] = node.target(*args, **kwargs)
            spec = node.meta["val"]
            if isinstance(spec, tuple) or node.meta.get("opaque"):
                continue
            got = (tuple(values[node].shape), values[node].dtype)
            assert got == (spec.shape, spec.dtype), f"{node.name}: spec {spec}, got {got}"
            assert values[node].numel() <= 1 or all(
                s == t for n, s, t in zip(spec.shape, values[node].stride(), spec.strides) if n > 1
            ), f"{node.name}: spec {spec}, got strides {values[node].stride()}"
    raise AssertionError("no output")


def structure(graph: fx.Graph) -> str:
    """The graph as text, one line a node in the order of need, names replaced by numbers, defaults filled in."""
    numbers: dict[fx.Node, str] = {}
    lines: list[str] = []

    def text(value: Any) -> str:
        if isinstance(value, fx.Node):
            return visit(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(text(v) for v in value)}]"
        return repr(value)

    def visit(node: fx.Node) -> str:
        if node in numbers:
            return numbers[node]
        if node.op == "placeholder":
            numbers[node] = node.name
            return node.name
        values = node.args if node.target is operator.getitem else bind(node.target, node.args, node.kwargs)
        arguments = ", ".join(text(v) for v in values)
        numbers[node] = f"%{len(lines)}"
        overload = "" if node.target is operator.getitem else f".{node.target._overloadname}"
        lines.append(
            f"{numbers[node]}: {node.meta['val']} = {packet_name(node.target)}{overload}({arguments})"
        )
        return numbers[node]

    output = next(n for n in graph.nodes if n.op == "output")
    lines.append(f"return {text(output.args[0])}")
    return "\n".join(lines)


def ops(graph: fx.Graph) -> list[str]:
    """The names of the ops of the graph, in order."""
    return [packet_name(n.target) for n in graph.nodes if n.op == "call_function"]


def find(graph: fx.Graph, name: str) -> fx.Node:
    """The first call of the op `name`."""
    return next(n for n in graph.nodes if n.op == "call_function" and packet_name(n.target) == name)


def assert_same(before: fx.Graph, expected: fx.Graph) -> None:
    assert structure(before) == structure(expected)


def assert_equal(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Bit for bit (nans equal), strides too."""
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert a.dtype is e.dtype and a.shape == e.shape and a.stride() == e.stride()
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True)
        if a.is_floating_point():
            assert torch.equal(torch.signbit(a[~a.isnan()]), torch.signbit(e[~e.isnan()]))
