"""What is made smaller: a graph, with the tensors that it is run on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from lampwork import pristine
from lampwork.graph.interpret import compute
from lampwork.graph.printing import to_python
from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.standard import functools
from lampwork.testing.failing import Check, Failure, failure_in_child

Unit = tuple[fx.Node, ...]
"""A call, with the items that are taken of its result."""


@record(eq=False)
class Case:
    """A graph and a call of it.

    `tensors`: of each placeholder, by its name. `keywords`: of `lampwork.compile`. `name`: of the function and region
    that it comes from.
    """

    name: str
    graph: fx.Graph
    tensors: Mapping[str, Tensor]
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def inputs(self) -> list[str]:
        """The names of the placeholders that a call is given."""
        return [n.name for n in placeholders(self.graph) if not n.meta.get("bound")]

    @property
    def bound(self) -> list[str]:
        """The names of the placeholders that are constants."""
        return [n.name for n in placeholders(self.graph) if n.meta.get("bound")]

    @property
    def nodes(self) -> int:
        """How many operators it has."""
        return sum(node.op == "call_function" and node.target is not getitem for node in self.graph.nodes)

    @property
    def is_random(self) -> bool:
        return any(node.meta.get("random") for node in self.graph.nodes)

    def failure(self, check: Check) -> Failure | None:
        """How it fails.

        Raises:
            NoProgram: it fails in eager PyTorch too.
        """
        inputs = [self.tensors[name] for name in self.inputs]
        bound = [self.tensors[name] for name in self.bound]
        if self.is_random:
            check = replace(check, exact=False)
        source = to_python(self.graph)
        return failure_in_child(
            functools.partial(_forward, source), inputs, bound, check, dict(self.keywords)
        )

    def values(self) -> dict[fx.Node, Any]:
        """The value of each node, computed by eager."""
        pristine.manual_seed(0)
        found: dict[fx.Node, Any] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                found[node] = self.tensors[node.name]
            elif node.op == "call_function":
                found[node] = compute(node, found)
        return found


def _forward(source: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(source, "<minified>", "exec"), names)
    return names["forward"]


def placeholders(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def outputs(graph: fx.Graph) -> tuple[fx.Node, ...]:
    return cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])


def units(graph: fx.Graph) -> list[Unit]:
    """The calls of a graph in order. One that gives several results is one with its items."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            is_item = node.target is getitem
            found.setdefault(cast(fx.Node, node.args[0]) if is_item else node, []).append(node)
    return [tuple(nodes) for nodes in found.values()]


def cut(
    case: Case, kept: Iterable[Unit], values: Mapping[fx.Node, Any], results: Sequence[fx.Node] | None = None
) -> Case:
    """The case of some of its calls. What others computed is an input, of the value that it had.

    results: what it returns; None: what it computes and does not use, and what the whole returns of it.
    """
    body = [node for unit in kept for node in unit]
    inside = set(body)
    if results is None:
        used = {used for node in body for used in node.all_input_nodes}
        whole = set(outputs(case.graph))
        ends = [n for n in body if (n not in used or n in whole) and isinstance(values[n], Tensor)]
    else:
        ends = list(results)
    outside = {used for node in body for used in node.all_input_nodes if used not in inside}
    outside |= {node for node in ends if node not in inside}
    ordered = [node for node in case.graph.nodes if node in outside]
    ordered.sort(key=lambda node: bool(node.meta.get("bound")))  # stable
    tensors = {node.name: own(values[node]) for node in ordered}
    return Case(case.name, assemble(ordered, body, ends), tensors, case.keywords)


def assemble(ordered: Sequence[fx.Node], body: Sequence[fx.Node], ends: Sequence[fx.Node]) -> fx.Graph:
    """A graph with these nodes for placeholders, calls and results."""
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    for node in ordered:
        twins[node] = graph.placeholder(node.name)
        twins[node].meta = {"val": node.meta.get("val"), "bound": bool(node.meta.get("bound"))}
    for node in body:
        args: Any = map_arg(node.args, twins.__getitem__)
        kwargs: Any = map_arg(node.kwargs, twins.__getitem__)
        made = graph.create_node("call_function", node.target, args, kwargs, name=node.name)
        made.meta = dict(node.meta)
        twins[node] = made
    graph.output(tuple(twins[node] for node in ends))
    return graph


def own(tensor: Tensor) -> Tensor:
    """A copy with the same strides, in memory of its own, that autograd takes for a leaf."""
    flat = tensor.detach().as_strided((extent(tensor),), (1,))
    return flat.clone().as_strided(tensor.shape, tensor.stride()).requires_grad_(tensor.requires_grad)


def extent(tensor: Tensor) -> int:
    """Elements from the first to the last one in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def described(case: Case) -> Case:
    """The case with specs that are those of its tensors."""
    values = case.values()
    graph = assemble(placeholders(case.graph), [n for unit in units(case.graph) for n in unit], ())
    old = [n for n in case.graph.nodes if n.op != "output"]
    new = dict(zip((n.name for n in old), graph.nodes, strict=False))
    for node in old:
        new[node.name].meta["val"] = _spec(values[node])
    next(iter(reversed(graph.nodes))).args = (tuple(new[n.name] for n in outputs(case.graph)),)
    return replace(case, graph=graph)


def _spec(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    if isinstance(value, (tuple, list)):
        return tuple(_spec(item) for item in cast("list[Any]", value))
    return None
