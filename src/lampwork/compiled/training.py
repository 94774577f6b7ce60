"""The pipeline of a region that is trained: its joint graph becomes the programs of forward and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.protocol import Backend
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.config import using_config
from lampwork.differentiation.joint import Asked, record_joint
from lampwork.differentiation.segments import memory_of, requires_grad
from lampwork.differentiation.split import Backward, split
from lampwork.partitioning import compile_parts, partition
from lampwork.partitioning.foreign import pass_context
from lampwork.records import record
from lampwork.runtime.autograd import Differentiable
from lampwork.runtime.tape import Rerun, below_autocast
from lampwork.runtime.trained import Build, CompiledBackward, Trained
from lampwork.transforms.pipeline import run_passes


@record
class Signature:
    """What `compile_parts` asks of a region."""

    inputs: tuple[Any, ...]
    bound: tuple[Tensor, ...]
    mutations: tuple[tuple[int, int], ...]


def trainer(region: Region, function: Function, backends: Sequence[Backend], shared: Differentiable) -> Build:
    """What compiles forward and backward of a region once a backward has shown what is asked of it."""

    def build(rerun: Rerun, asked: Mapping[int, Asked]) -> Trained | None:
        try:
            with using_config(function.config), pristine.no_grad(), below_autocast():
                return _build(region, function, backends, shared, rerun, asked)
        except Exception as error:  # noqa: BLE001  (a failure of ours becomes an eager run)
            function.note_backward(error)
            return None

    return build


def _build(
    region: Region,
    function: Function,
    backends: Sequence[Backend],
    shared: Differentiable,
    rerun: Rerun,
    asked: Mapping[int, Asked],
) -> Trained:
    segments, graph = rerun.segments, rerun.graph
    by_name = {node.name: node for node in graph.nodes}
    returned = (*segments.results, *(by_name[name] for name in shared.needed))
    joint = record_joint(graph, segments, returned, asked)
    trained = frozenset(
        twin for node, twin in zip(rerun.placeholders, joint.placeholders, strict=True) if requires_grad(node)
    )
    halves = split(joint, trained)
    place = {number: i for i, number in enumerate(halves.inputs)}
    bound = [
        region.bound[number - len(region.inputs)] for number in halves.inputs if number >= len(region.inputs)
    ]
    n_bound = sum(bool(node.meta["bound"]) for node in halves.forward.nodes if node.op == "placeholder")
    signature = Signature(
        halves.inputs[: len(halves.inputs) - n_bound],
        tuple(bound[len(bound) - n_bound :]),
        tuple((place[number], result) for number, result in shared.mutations),
    )
    forward = _compile(halves.forward, signature, function, backends)
    given = signature.inputs

    def run(tensors: list[Tensor]) -> Sequence[Tensor]:
        return forward([tensors[number] for number in given])

    backwards = {
        number: _backward(backward, asked[number], function, backends)
        for number, backward in halves.backwards.items()
    }
    exposed = {memory_of(returned[number]): number for number in halves.exposed}
    return Trained(run, len(returned), exposed, backwards)


def _backward(
    backward: Backward, asked: Asked, function: Function, backends: Sequence[Backend]
) -> CompiledBackward:
    program = _compile(backward.graph, Signature(backward.inputs, (), ()), function, backends)
    return CompiledBackward(program, backward.inputs, backward.gradients, asked)


def _compile(graph: fx.Graph, signature: Signature, function: Function, backends: Sequence[Backend]) -> Any:
    ctx = pass_context(function.config, backends)
    run_passes(graph, function.config, ctx=ctx)
    for fault in ctx.faults:
        function.note_fault(fault, "the graph as it was before")
    parts = partition(graph, backends, function.note_fault)
    return compile_parts(parts, cast(Any, signature), report=function.note_fault)
