"""Operators alone: programs of one call each, made of the parts that a backend compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork.graph.copying import copy_graph
from lampwork.graph.nested import leaves, replaced
from lampwork.graph.nodes import copy_node
from lampwork.graph.spec import TensorSpec
from lampwork.records import record
from lampwork.rewriting.schema import is_pinned, packet_name
from lampwork.standard import operator
from lampwork.testing.compare import difference
from lampwork.testing.programs import Program
from lampwork.testing.samples import Sample

# What stands in the first places of a tensor. No numbers so large that sums overflow: where they do is no promise.
_SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-42)
# Numbers that are none have no integer to become.
_UNDEFINED = frozenset({torch.ops.aten._to_copy.default})
_WORDS = {"none": "tanh", "tanh": "none", "floor": "trunc", "trunc": "floor", "sum": "mean", "mean": "sum"}


@record
class Alone:
    """A graph of one call of an operator."""

    sample: Sample

    @property
    def program(self) -> Program:
        """With normal numbers."""
        return Program(self.sample.name, self.sample.function(), lambda: tuple(self.sample.inputs()))

    def with_special_numbers(self) -> Iterator[Program]:
        """For each floating operand, with nan, infinities, zeros and a denormal in it, where eager takes them."""
        call = _call_of(self.sample.graph)
        for place, tensor in enumerate(self.sample.inputs()):
            if tensor.is_floating_point() and tensor.numel() and call.target not in _UNDEFINED:
                name = f"{self.sample.name} of nan, infinities, -0.0"
                yield Program(name, self.sample.function(), self._special(place))

    def _special(self, place: int) -> Callable[[], tuple[Any, ...]]:
        def make() -> tuple[Any, ...]:
            made = self.sample.inputs()
            values = made[place].flatten().clone()
            count = min(len(_SPECIAL), values.numel())
            values[:count] = torch.tensor(_SPECIAL, dtype=torch.float64)[:count].to(values.dtype)
            made[place].copy_(values.view(made[place].shape))
            return tuple(made)

        return make

    def with_other_literals(self) -> Iterator[Program]:
        """The same call with one literal changed, where eager takes that and gives something else."""
        before = _result(self.program)
        for graph in _variants(self.sample.graph):
            changed = Alone(Sample(f"{self.sample.name}, another literal", graph)).program
            after = _result(changed)
            if after is not None and before is not None and difference(after, before):
                yield changed

    def with_operands_exchanged(self) -> tuple[Program, ...]:
        """Two programs, op(op(x, y), y) and op(y, op(x, y)), where those are different things."""
        call = _call_of(self.sample.graph)
        operands = [node for node in call.args if isinstance(node, fx.Node)]
        if len(operands) != 2 or any(node.meta["val"] != call.meta["val"] for node in operands):
            return ()
        name = self.sample.name
        pair = [
            Alone(Sample(f"{name} of {which} operands", _twice(self.sample.graph, turned))).program
            for which, turned in (("two", False), ("exchanged", True))
        ]
        first, second = map(_result, pair)
        return tuple(pair) if first and second and difference(first, second) else ()


def operators_alone(graphs: Sequence[fx.Graph]) -> tuple[Alone, ...]:
    """The first call of each operator in these graphs that draws no random numbers, as a graph of its own."""
    found: dict[Any, Alone] = {}
    for graph in graphs:
        for node in graph.nodes:
            if node.op == "call_function" and node.target not in (*found, operator.getitem):
                apart = all(map(_lies_apart, node.all_input_nodes))
                if apart and not is_pinned(node) and isinstance(node.target, torch._ops.OpOverload):
                    found[node.target] = Alone(Sample(packet_name(node.target), _graph_of(node)))
    return tuple(found.values())


def _lies_apart(node: fx.Node) -> bool:
    """Whether each element has a place of its own in memory."""
    spec = node.meta["val"]
    return isinstance(spec, TensorSpec) and all(
        stride or size <= 1 for size, stride in zip(spec.shape, spec.strides, strict=True)
    )


def _graph_of(node: fx.Node) -> fx.Graph:
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    for number, given in enumerate(dict.fromkeys(node.all_input_nodes)):
        twins[given] = graph.placeholder(f"x{number}")
        twins[given].meta = {"val": given.meta["val"], "bound": False}
    call = copy_node(graph, node, twins.__getitem__)
    twins[node] = call
    if isinstance(node.meta["val"], TensorSpec):
        graph.output((call,))
        return graph
    items = [user for user in node.users if user.target is operator.getitem]
    graph.output(tuple(copy_node(graph, item, twins.__getitem__) for item in items))
    return graph


def _call_of(graph: fx.Graph) -> fx.Node:
    return next(node for node in graph.nodes if node.op == "call_function")


def _variants(graph: fx.Graph) -> Iterator[fx.Graph]:
    """The graph with one literal of its call changed, in each way there is."""
    call = _call_of(graph)
    given: Any = (call.args, dict(call.kwargs))
    for place, literal in enumerate(leaves(given, _LITERALS)):
        for other in _others(literal):
            yield _with_arguments(graph, _with_leaf(given, place, other))


def _twice(graph: fx.Graph, turned: bool) -> fx.Graph:
    """The call of the result and the second operand, or the other way around."""
    copy = copy_graph(graph)
    call = _call_of(copy)
    left, right = (node for node in call.args if isinstance(node, fx.Node))
    places = {left: right, right: call} if turned else {left: call}
    output = next(iter(reversed(copy.nodes)))
    with copy.inserting_before(output):
        again = copy_node(copy, call, lambda node: places.get(node, node))
    output.args = ((again,),)
    return copy


_LITERALS: Any = (bool, int, float, str, torch.dtype)


def _others(literal: Any) -> tuple[Any, ...]:
    if isinstance(literal, bool):
        return (not literal,)
    if isinstance(literal, int):
        return (literal + 1, literal - 1)
    if isinstance(literal, float):
        return (literal * 0.5 + 0.25,)
    if isinstance(literal, torch.dtype):
        return (torch.float64 if literal is not torch.float64 else torch.float32,)
    return (_WORDS[literal],) if literal in _WORDS else ()


def _with_leaf(given: Any, place: int, other: Any) -> Any:
    places = iter(range(1 << 30))
    return replaced(given, _LITERALS, lambda literal: other if next(places) == place else literal)


def _with_arguments(graph: fx.Graph, given: Any) -> fx.Graph:
    copy = copy_graph(graph)
    twins = {node.name: node for node in copy.nodes}
    call = _call_of(copy)
    args, kwargs = replaced(given, fx.Node, lambda node: twins[node.name])
    call.args, call.kwargs = cast("tuple[Any, ...]", args), cast("dict[str, Any]", kwargs)
    return copy


def _result(program: Program) -> list[Tensor] | None:
    """What eager gives; None where it refuses."""
    try:
        with torch.no_grad():
            return [*leaves(program.fn(*program.inputs()), Tensor)]
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
