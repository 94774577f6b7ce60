"""A graph with a device for each of its pieces, as something that runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.eager import EagerBackend
from lampwork.graph.nodes import copy_node
from lampwork.graph.spec import TensorSpec
from lampwork.partitioning.parts import Part, is_fixed, subgraph
from lampwork.partitioning.schedule import Turn, Units, schedule
from lampwork.placement.devices import Device
from lampwork.placement.pieces import Piece
from lampwork.records import record
from lampwork.rewriting.schema import is_pinned


@record
class Fragment:
    """A part of a graph by itself. `inputs`: the nodes its placeholders stand for, weights last; `outputs`: those it
    returns."""

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]

    @staticmethod
    def of(whole: fx.Graph, nodes: Collection[fx.Node]) -> Fragment:
        """These nodes, with what they need that depends on weights alone."""
        inside = set(nodes)
        part = Part(EagerBackend(), tuple(node for node in whole.nodes if node in inside), whole)
        graph, inputs, outputs = subgraph(part, keep_constants=True)
        return Fragment(graph, tuple(inputs), tuple(outputs))

    @property
    def arguments(self) -> tuple[fx.Node, ...]:
        return tuple(node for node in self.inputs if not is_fixed(node))

    @property
    def weights(self) -> tuple[fx.Node, ...]:
        return tuple(node for node in self.inputs if is_fixed(node))

    def compiled(self, device: Device, home: torch.device, weights: Mapping[fx.Node, Tensor]) -> Any:
        """What runs the fragment on a device, with copies of the weights there."""
        return device.compile(self.module(device, home, {n: device.to(weights[n]) for n in self.weights}))

    def module(self, device: Device, home: torch.device, weights: Mapping[fx.Node, Tensor]) -> fx.GraphModule:
        """The fragment with its weights as a module for a device: what it makes on `home` is made there instead."""
        root = torch.nn.Module()
        graph = fx.Graph()
        twins: dict[fx.Node, fx.Node] = {}
        inner = [node for node in self.graph.nodes if node.op == "placeholder"]
        for number, (node, outer) in enumerate(zip(inner, self.inputs, strict=True)):
            if is_fixed(outer):
                root.register_buffer(f"weight{number}", weights[outer])
                twins[node] = graph.get_attr(f"weight{number}")
            else:
                twins[node] = graph.placeholder(node.name)
        for node in self.graph.nodes:
            if node.op != "call_function":
                continue
            twins[node] = made = copy_node(graph, node, twins.__getitem__)
            if node.target is torch.ops.aten.view.default:
                made.target = (
                    torch.ops.aten.reshape.default
                )  # other devices may lay out what it views otherwise
            if device.where != home and _makes_tensors(node, home):
                made.kwargs = {**made.kwargs, "device": device.where}
        graph.output(tuple(twins[node] for node in results_of(self.graph)))
        return fx.GraphModule(root, graph)


def _makes_tensors(node: fx.Node, home: torch.device) -> bool:
    """Whether a call says on which device its result is, and that is home: a factory that says nothing means the
    CPU."""
    if "device" in node.kwargs and node.kwargs["device"] is not None:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or node.all_input_nodes:
        return False
    return home.type == "cpu" and any(each.name == "device" for each in node.target._schema.arguments)


@record
class Run:
    """Call what was compiled: values by number. `dead`: those nobody needs afterwards."""

    call: Callable[..., Sequence[Tensor]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...] = ()


@record
class Copy:
    """The value `source` into the memory of `device`, as the value `target`, with the strides that it has in eager."""

    device: Device
    source: int
    target: int
    strides: tuple[int, ...]
    dead: tuple[int, ...] = ()

    def of(self, tensor: Tensor) -> Tensor:
        moved = self.device.to(tensor)
        if moved.stride() == self.strides or moved.numel() <= 1:
            return moved
        if any(stride == 0 and size > 1 for size, stride in zip(moved.shape, self.strides, strict=True)):
            return moved  # its elements lie in each other's place, which nothing needs
        blank = pristine.empty_strided(moved.shape, self.strides, dtype=moved.dtype, device=moved.device)
        return blank.copy_(moved)


@record
class Execution:
    """What runs a graph: called with its inputs, it returns its outputs, both in the caller's memory."""

    n_inputs: int
    n_values: int
    steps: tuple[Run | Copy, ...]
    outputs: tuple[int, ...]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        values: list[Any] = [*inputs[: self.n_inputs], *[None] * (self.n_values - self.n_inputs)]
        for step in self.steps:
            if isinstance(step, Run):
                results = step.call(*[values[i] for i in step.inputs])
                for number, result in zip(step.outputs, results, strict=True):
                    values[number] = result
            else:
                values[step.target] = step.of(values[step.source])
            for number in step.dead:
                values[number] = None
        return [values[i] for i in self.outputs]


@record
class Placing:
    """A graph that is to be run on several devices. `weights`: the tensors of its bound placeholders.

    `home`: the device that has the caller's tensors, whether or not it is one of `devices`.
    """

    graph: fx.Graph
    weights: Mapping[fx.Node, Tensor]
    pieces: tuple[Piece, ...]
    devices: tuple[Device, ...]
    home: Device

    def execution(self, assignment: Sequence[int]) -> Execution:
        """Compiled for its devices: neighbouring pieces of one device are one function."""
        return _Linker(self, self.turns(assignment)).linked()

    def weight_bytes(self, piece: Piece) -> int:
        """Of the weights that a piece reads."""
        return sum(map(nbytes, Fragment.of(self.graph, piece.nodes).weights))

    def turns(self, assignment: Sequence[int]) -> list[Turn]:
        """What the devices do in turn: `color` is the device's number."""
        owner = {node: i for i, piece in enumerate(self.pieces) for node in piece.nodes}
        needs: list[set[int]] = [set() for _ in self.pieces]
        pinned: int | None = None
        for number, piece in enumerate(self.pieces):
            used = {owner[each] for node in piece.nodes for each in node.all_input_nodes if each in owner}
            needs[number] |= used - {number}
            if any(map(is_pinned, piece.nodes)):
                needs[number] |= set() if pinned is None else {pinned}
                pinned = number
        users: list[set[int]] = [set() for _ in self.pieces]
        for number, needed in enumerate(needs):
            for other in needed:
                users[other].add(number)
        nodes = tuple(piece.nodes for piece in self.pieces)
        return schedule(
            Units(nodes, tuple(map(frozenset, needs)), tuple(map(frozenset, users)), tuple(assignment))
        )


@record
class _Linker:
    """Numbers values, (node, memory) pairs, and makes the steps."""

    placing: Placing
    turns: Sequence[Turn]
    numbers: dict[tuple[fx.Node, str], int] = field(default_factory=dict[tuple[fx.Node, str], int])
    memories: dict[fx.Node, str] = field(default_factory=dict[fx.Node, str])
    """Where each value was made."""
    steps: list[Run | Copy] = field(default_factory=list[Run | Copy])

    def linked(self) -> Execution:
        placing = self.placing
        home = placing.home
        for node in placing.graph.nodes:
            if node.op == "placeholder" and not is_fixed(node):
                self._number(node, home.memory)
        n_inputs = len(self.numbers)
        for turn in self.turns:
            self._run(turn, placing.devices[turn.color])
        outputs = tuple(self._available(node, home) for node in results_of(placing.graph))
        return Execution(n_inputs, len(self.numbers), tuple(_freeing(self.steps, outputs)), outputs)

    def _run(self, turn: Turn, device: Device) -> None:
        fragment = Fragment.of(self.placing.graph, turn.nodes)
        inputs = tuple(self._available(node, device) for node in fragment.arguments)
        call = fragment.compiled(device, self.placing.home.where, self.placing.weights)
        outputs = tuple(self._number(node, device.memory) for node in fragment.outputs)
        self.steps.append(Run(call, inputs, outputs))

    def _number(self, node: fx.Node, memory: str) -> int:
        self.memories.setdefault(node, memory)
        return self.numbers.setdefault((node, memory), len(self.numbers))

    def _available(self, node: fx.Node, device: Device) -> int:
        """The number of a value in a device's memory, where it is copied if it is not there yet."""
        known = self.numbers.get((node, device.memory))
        if known is not None:
            return known
        source = self.numbers[node, self.memories[node]]
        target = self._number(node, device.memory)
        self.steps.append(Copy(device, source, target, cast(TensorSpec, node.meta["val"]).strides))
        return target


def _freeing(steps: Sequence[Run | Copy], outputs: Sequence[int]) -> list[Run | Copy]:
    """The steps, each with the values that nothing needs after it."""
    seen = set(outputs)
    found: list[Run | Copy] = []
    for step in reversed(steps):
        used = (*step.inputs, *step.outputs) if isinstance(step, Run) else (step.source, step.target)
        dead = tuple(number for number in dict.fromkeys(used) if number not in seen)
        seen.update(used)
        found.append(replace(step, dead=dead))
    return found[::-1]


def results_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """What a graph returns."""
    return cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])


def nbytes(node: fx.Node) -> int:
    """The bytes of a tensor that a node stands for."""
    spec = node.meta.get("val")
    return spec.nbytes if isinstance(spec, TensorSpec) else 0
