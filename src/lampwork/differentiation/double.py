"""The backward of a segment as a function that can be differentiated in its turn, which `create_graph=True` asks for.

before: y = tanh(x @ w)                      differentiated by x and w, y's gradient given
after:  placeholders x, w, tangent
        mm = aten.mm(x, w); tanh = aten.tanh(mm)
        tanh_backward = aten.tanh_backward(tangent, tanh)
        returns tanh_backward @ w.T, x.T @ tanh_backward

It depends on what the segment starts from and on the gradients of its results, so forward is computed in it again: what
it would save has a gradient as well. Results that the caller can hold are given, too: where a formula takes the result,
as that of tanh does, eager's gradient goes through it, with its hooks. As in a joint graph, autograd runs on tensors
without data, here with `create_graph=True`, for which some formulas of torch are others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import getitem
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.differentiation.joint import Asked, JointRecorder, dropout, input_of
from lampwork.differentiation.saved import grad_fn
from lampwork.differentiation.segments import Segment, Segments
from lampwork.differentiation.split import Given
from lampwork.errors import UnsupportedOpError
from lampwork.graph.interpret import compute, resolve
from lampwork.graph.islands import as_leaf, has_islands, is_connected
from lampwork.graph.nested import leaves
from lampwork.graph.nodes import add_call, copy_node
from lampwork.graph.opinfo import op_info
from lampwork.graph.origin import place_of
from lampwork.graph.recorded import with_grad, without_grad
from lampwork.graph.spec import TensorSpec
from lampwork.graph.tracetensor import TraceTensor
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import view_base

aten = torch.ops.aten


@record
class Double:
    """`graph`: its placeholders stand for `inputs`: tensors of the region ("kept"), sources of the segment that are
    computed in it ("source"), its results ("result"), and their gradients ("tangent"). Specs say what requires grad.
    `gradients`: for each source of the segment the number of the graph's result that is its gradient, -1 where there is
    none."""

    graph: fx.Graph
    inputs: tuple[Given, ...]
    gradients: tuple[int, ...]


class _Recorder(JointRecorder):
    """A tensor that autograd saved and gives back is a detached alias, which it has connected again. Autograd does not
    know here what is a view of what: a formula that writes to a part of a tensor has no derivative."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in leaves((args, kwargs), TraceTensor):
            _connect(tensor)
        if func._schema.is_mutable and any(tensor.chain for tensor in _written(func, args)):
            raise UnsupportedOpError("backward writes to a part of a tensor")
        return super().__torch_dispatch__(func, types, args, kwargs)


def _written(func: Any, args: Sequence[Any]) -> list[TraceTensor]:
    pairs = zip(func._schema.arguments, args, strict=False)
    return [arg for known, arg in pairs if known.is_write and type(arg) is TraceTensor]


def _connect(tensor: TraceTensor) -> None:
    while tensor.chain and tensor.chain[-1].op is aten.detach.default and is_connected(tensor):
        tensor.chain = tensor.chain[:-1]
        tensor.node = cast(fx.Node, tensor.node.args[0])


def record_double(
    graph: fx.Graph, segments: Segments, number: int, asked: Asked, attached: Sequence[bool]
) -> Double:
    """The backward of segment `number` of `graph`, whose sizes are numbers. `attached`: which of the gradients that are
    given require grad.

    Raises:
        UnsupportedOpError, DataDependentError: an operator of backward cannot be recorded.
    """
    if has_islands(graph):
        raise UnsupportedOpError(
            "gradients of gradients of DTensors, whose collectives would be started again"
        )
    segment = segments.segments[number]
    recorder = _Recorder(graph)
    run = _Run(recorder, graph, segments, segment)
    tangents = [
        None if spec is None else input_of(recorder, f"tangent_{i}", spec)
        for i, spec in enumerate(asked.tangents)
    ]
    with recorder, pristine.enable_grad():
        for tangent, flag in zip(tangents, attached, strict=True):
            if tangent is not None and flag:
                as_leaf(tangent)
        run.forward()
        found = run.gradients(tangents, asked.needed)
    flags = [gradient is not None and is_connected(gradient) for gradient in found]
    made = [gradient for gradient in found if gradient is not None]
    for tensor in made:
        _connect(cast(TraceTensor, tensor))
    recorded = recorder.finish(cast("list[TraceTensor]", made))
    results = iter(cast("tuple[fx.Node, ...]", next(iter(reversed(recorded.graph.nodes))).args[0]))
    ends = [None if gradient is None else next(results) for gradient in found]
    asked.check(ends)
    known = {tensor.node: given for given, tensor in run.inputs.items()}
    known.update(
        (tangent.node, Given("tangent", i))
        for i, tangent in enumerate(tangent for tangent in tangents if tangent is not None)
    )
    required = {
        tensor.node for tensor in (*run.starts, *tangents) if tensor is not None and is_connected(tensor)
    }
    wanted = {end: flag for end, flag in zip(ends, flags, strict=True) if end is not None}
    shown = {i: node for i, node in enumerate(segment.results) if node in segments.roots}
    for i, node in shown.items():
        stand_in = _stand_in(recorded.graph, run.values[node].node)
        known[stand_in] = Given("result", i)
        required.add(stand_in)
    recorder.close()
    return _divided(recorded.graph, known, required, wanted, ends)


def _stand_in(graph: fx.Graph, result: fx.Node) -> fx.Node:
    """A placeholder that formulas take for a result."""
    with graph.inserting_before(next(iter(graph.nodes))):
        made = graph.placeholder(f"{result.name}_given")
    made.meta["val"] = result.meta["val"]
    result.replace_all_uses_with(made, delete_user_cb=lambda user: user.op != "output")
    return made


def source_values(graph: fx.Graph, sources: Iterable[fx.Node]) -> tuple[fx.Graph, tuple[int, ...]]:
    """What computes these nodes of a region, and the numbers of the placeholders that it takes."""
    ends = tuple(sources)
    copy, values = _copy(graph, _with_draws(graph, ends))
    copy.output(tuple(values[node] for node in ends))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    return copy, tuple(i for i, node in enumerate(placeholders) if node in values)


class _Run:
    """One segment, run under autograd on tensors without data. `inputs`: what the graph takes. `starts`: those of them
    that the segment is differentiated by, in the order of its sources."""

    def __init__(
        self, recorder: JointRecorder, graph: fx.Graph, segments: Segments, segment: Segment
    ) -> None:
        self.segment = segment
        self.recorder = recorder
        self.inputs: dict[Given, TraceTensor] = {}
        self.values: dict[fx.Node, Any] = {}
        ends = [node for node in segment.sources if node.op != "placeholder"]
        self.nodes = _with_draws(graph, segment.results, ends)
        for number, node in enumerate(node for node in graph.nodes if node.op == "placeholder"):
            if node in self.nodes or node in segment.sources:
                self._input(recorder, node, Given("kept", number))
        for number, node in enumerate(segment.sources):
            if node.op != "placeholder":
                self._input(recorder, node, Given("source", number))
        self.starts = [cast(TraceTensor, self.values[node]) for node in segment.sources]

    def _input(self, recorder: JointRecorder, node: fx.Node, given: Given) -> None:
        self.inputs[given] = self.values[node] = input_of(recorder, node.name, node.meta["val"])

    def forward(self) -> None:
        for tensor in self.starts:
            as_leaf(tensor)
        for node in self.nodes:
            if node not in self.values:
                self.values[node] = self._computed(node)

    def _computed(self, node: fx.Node) -> Any:
        self.recorder.begin(node)
        if node.target is aten.dropout.default:
            value = dropout(*resolve(node.args, self.values))
            if value is not NotImplemented:
                return value
        return compute(node, self.values)

    def gradients(
        self, tangents: Sequence[TraceTensor | None], wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """The gradient of each source, None where there is none or none is wanted.

        Raises:
            UnsupportedOpError: one is computed in Python, by a function with a backward of its own.
        """
        pairs = [
            (self.values[node], tangent)
            for node, tangent in zip(self.segment.results, tangents, strict=True)
            if tangent is not None and is_connected(self.values[node])
        ]
        places = [i for i, flag in enumerate(wanted) if flag]
        gradients: list[Tensor | None] = [None] * len(wanted)
        if not pairs or not places:
            return gradients
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            [self.starts[i] for i in places],
            [tangent for _, tangent in pairs],
            create_graph=True,
            allow_unused=True,
        )
        for i, gradient in zip(places, found, strict=True):
            gradients[i] = gradient
        _check_formulas(gradient for gradient in gradients if gradient is not None)
        return gradients


def _check_formulas(gradients: Iterable[Tensor]) -> None:
    """
    Raises:
        UnsupportedOpError: a gradient depends on a function whose backward is Python's, which no operator shows.
    """
    seen: set[int] = set()
    work = [grad_fn(gradient) for gradient in gradients]
    kept: list[Any] = []
    while work:
        function = work.pop()
        if function is None or id(function) in seen:
            continue
        if isinstance(function, torch.autograd.function.BackwardCFunction):
            raise UnsupportedOpError(
                f"{type(function).__name__}, of Python, is part of a backward that is differentiated"
            )
        seen.add(id(function))
        kept.append(function)
        work.extend(following for following, _ in function.next_functions)


def _with_draws(
    graph: fx.Graph, ends: Iterable[fx.Node], starts: Collection[fx.Node] = ()
) -> dict[fx.Node, None]:
    """The nodes that `ends` are computed from, `starts` given, in order; and what draws random numbers before one of
    them does."""
    wanted = _needed(ends, starts)
    draws = [node for node in graph.nodes if node.meta.get("random")]
    last = max((i for i, node in enumerate(draws) if node in wanted), default=-1)
    if last >= 0:
        wanted |= _needed(draws[: last + 1], starts)
    return {node: None for node in graph.nodes if node in wanted}


def _needed(ends: Iterable[fx.Node], starts: Collection[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    work = list(ends)
    while work:
        node = work.pop()
        if node not in found and node not in starts:
            found.add(node)
            work.extend(node.all_input_nodes)
    return found


_OF_WRITES = ("overwrites", "lies_in", "new_versions", "whole")
"""What a recording notes of writes to memory, which formulas make to memory of their own."""


def _copy(graph: fx.Graph, nodes: Collection[fx.Node]) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """These nodes of a graph, without an output."""
    copy, values = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if node in nodes and node.op != "output":
            values[node] = copy_node(copy, node, values.__getitem__)
            for key in _OF_WRITES:
                values[node].meta.pop(key, None)
            if node.op == "placeholder":
                values[node].meta["bound"] = False
    return copy, values


def _divided(
    graph: fx.Graph,
    known: Mapping[fx.Node, Given],
    required: Collection[fx.Node],
    wanted: Mapping[fx.Node, bool],
    ends: Sequence[fx.Node | None],
) -> Double:
    """What of a recorded graph the gradients need. `required`: placeholders that require grad. `wanted`: the gradients,
    and whether they do."""
    copy, values = _copy(graph, _with_draws(graph, wanted))
    for node, made in values.items():
        spec = _spec(made, node in required)
        made.meta["val"] = without_grad(spec) if wanted.get(node) is False else spec
        if wanted.get(node) and not made.meta["val"].requires_grad:
            raise UnsupportedOpError(f"no operator shows how the gradient {node.name} is differentiated")
    copy.output(tuple(_apart(copy, values[node]) for node in wanted))
    numbers = {node: number for number, node in enumerate(wanted)}
    order = {values[node]: given for node, given in known.items() if node in values}
    inputs = tuple(order[node] for node in copy.nodes if node.op == "placeholder")
    return Double(copy, inputs, tuple(-1 if end is None else numbers[end] for end in ends))


def _spec(node: fx.Node, is_start: bool) -> Any:
    """The node's spec, with what autograd would say of it."""
    val = node.meta["val"]
    if node.op == "placeholder":
        return with_grad(val) if is_start else without_grad(val)
    if node.target is getitem:
        source, number = cast("tuple[fx.Node, int]", node.args)
        return source.meta["val"][number]
    info = op_info(cast(Any, node.target))
    if info.differentiable and any(_requires_grad(used) for used in node.all_input_nodes):
        return with_grad(val, info.detached)
    return without_grad(val)


def _requires_grad(node: fx.Node) -> bool:
    val = node.meta["val"]
    specs = (val,) if isinstance(val, TensorSpec) else val
    return any(spec is not None and spec.requires_grad for spec in specs)


def _apart(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The node as a result that nothing else in the graph is computed from, and that is a view of nothing."""
    if node.op == "placeholder" or not _requires_grad(node):
        return node
    if not node.users and view_base(node) is None:
        return node
    spec: TensorSpec = node.meta["val"]
    made = add_call(graph, aten.view.default, (node, list(spec.shape)), {}, "view", place_of(node))
    made.meta.update(val=spec, whole=True)
    return made
