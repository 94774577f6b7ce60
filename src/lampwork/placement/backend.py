"""The two backends behind a placed model: one that sees its graph, and one that runs it where the plan says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, fx

from lampwork.backends.protocol import CompileOptions
from lampwork.graph.interpret import run_graph
from lampwork.partitioning.parts import is_fixed
from lampwork.placement.devices import Device
from lampwork.placement.execution import Placing
from lampwork.placement.pieces import Piece
from lampwork.records import record
from lampwork.rewriting.schema import packet_name
from lampwork.standard import itertools


@record
class Seen:
    """A graph as a backend gets it: the tensors of its bound placeholders, and the inputs of the last call."""

    graph: fx.Graph
    bound: tuple[Tensor, ...]
    inputs: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def weights(self) -> dict[fx.Node, Tensor]:
        nodes = [n for n in self.graph.nodes if n.op == "placeholder" and n.meta.get("bound")]
        return dict(zip(nodes, self.bound, strict=True))


class _OfWholeGraphs:
    """What both backends say of themselves."""

    name: ClassVar[str] = "placement"
    bakes_weights: ClassVar[bool] = True
    keeps_constants: ClassVar[bool] = True

    def supports(self, node: fx.Node) -> bool:
        return True


@dataclass(eq=False)
class Watching(_OfWholeGraphs):
    """Runs everything in eager PyTorch and keeps what it saw."""

    seen: list[Seen] = field(default_factory=list[Seen])

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        seen = Seen(graph, options.bound)
        self.seen.append(seen)

        def run(*inputs: Tensor) -> Sequence[Tensor]:
            seen.inputs[:] = inputs
            return run_graph(graph, [*inputs, *seen.bound])

        return run


@dataclass(eq=False)
class Placed(_OfWholeGraphs):
    """Runs graphs as planned: `piece_of[i]` is the number of the piece of the i-th call, -1 if it depends on weights
    only, and `assignment` has the device's number for each piece. Graphs of other `operators` (another branch of the
    program, other sizes if they make a difference) run on the caller's device, the last one of `devices`.
    """

    devices: tuple[Device, ...]
    operators: tuple[str, ...]
    piece_of: tuple[int, ...]
    assignment: tuple[int, ...]

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        calls = calls_of(graph)
        known = operators_of(calls) == self.operators
        groups: dict[int, list[fx.Node]] = {}
        for number, node in zip(self.piece_of if known else itertools.repeat(0), calls, strict=False):
            if not is_fixed(node):
                groups.setdefault(number, []).append(node)
        pieces = tuple(Piece("", tuple(nodes)) for _, nodes in sorted(groups.items()))
        home = len(self.devices) - 1
        weights = Seen(graph, options.bound).weights
        placing = Placing(graph, weights, pieces, self.devices, self.devices[home])
        return placing.execution(self.assignment if known else [home] * len(pieces))


def calls_of(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def operators_of(calls: Sequence[fx.Node]) -> tuple[str, ...]:
    return tuple(packet_name(node.target) for node in calls)
