"""The pipeline of a region that is trained: its joint graph becomes the programs of forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.observer import NOBODY, Observer
from lampwork.backends.protocol import Backend
from lampwork.capture.model.region import Region
from lampwork.capture.state.contexts import beyond_function_modes
from lampwork.compiled.function import Function
from lampwork.compiled.transformed import transform
from lampwork.config import using_config
from lampwork.differentiation.double import record_double, source_values
from lampwork.differentiation.joint import Asked, Joint, record_joint
from lampwork.differentiation.saved import Probe
from lampwork.differentiation.segments import Segments, memory_of, requires_grad
from lampwork.differentiation.split import Backward, Split, lay_out_saved, split
from lampwork.errors import CaptureError
from lampwork.graph.copying import copy_graph
from lampwork.partitioning import start_parts
from lampwork.partitioning.foreign import pass_context
from lampwork.records import record
from lampwork.runtime import trim_memory
from lampwork.runtime.autograd import Differentiable
from lampwork.runtime.doubles import BuildDouble, Double
from lampwork.runtime.tape import Rerun, below_autocast
from lampwork.runtime.trained import Awaited, Build, CompiledBackward, Run, Trained


@record
class Signature:
    """What `start_parts` asks of a region."""

    inputs: tuple[Any, ...]
    bound: tuple[Tensor, ...]
    mutations: tuple[tuple[int, int], ...]


def trainer(
    region: Region | Signature,
    function: Function,
    observer: Observer,
    backends: Sequence[Backend],
    shared: Differentiable,
) -> Build:
    """What compiles forward and backward of a region once it is known what backward asks of it, or foreseen."""

    def build(rerun: Rerun, asked: Mapping[int, Asked]) -> Trained | None:
        foreseen = rerun.savings is None
        try:
            with _compiling(function):
                by_name = {node.name: node for node in rerun.graph.nodes}
                returned = (*rerun.segments.results, *(by_name[name] for name in shared.needed))
                probe = Probe(rerun.graph, rerun.segments) if foreseen else None
                joint = record_joint(rerun.graph, rerun.segments, returned, asked, probe)
                if foreseen and joint.savings is None:
                    return None
                halves = split(joint, _trained(rerun, joint), function.config.memory_budget)
                observer.differentiated(halves)
                saved = {memory_of(returned[number]): number for number in halves.exposed}
                # What a collective gave is returned to be kept; the caller may not get to see it.
                exposed = {root: number for root, number in saved.items() if root in rerun.places}
                # Who was there before the forward was compiled looks at that of the trained region.
                seen = observer if foreseen else NOBODY
                finish, given = _forward(halves, region, shared, function, backends, seen)
                lay_out_saved(halves, pass_context(function.config, backends).infer)
                backwards = {
                    number: _backward(backward, asked[number], function, backends)
                    for number, backward in halves.backwards.items()
                }
                program = finish()
                rerun.savings = rerun.savings or joint.savings
                trim_memory()  # compilation, or eager's backward, has left much of it
                return Trained(program, given, len(returned), exposed, backwards)
        except Exception as error:  # noqa: BLE001  (a failure of ours becomes an eager run)
            if not (foreseen and isinstance(error, CaptureError)):
                function.note_backward(error)
            return None

    return build


@contextmanager
def _compiling(function: Function) -> Generator[None]:
    """The options of a function, and none of the modes that its caller is in."""
    with using_config(function.config), pristine.no_grad(), below_autocast(), beyond_function_modes():
        yield


def doubler(function: Function, backends: Sequence[Backend]) -> BuildDouble:
    """What compiles a backward that is differentiable: a region of its own, whose backwards are compiled in turn."""

    def build(
        graph: fx.Graph, segments: Segments, number: int, asked: Asked, attached: Sequence[bool]
    ) -> Double | None:
        try:
            with _compiling(function):
                made = record_double(graph, segments, number, asked, attached)
                signature = Signature(made.inputs, (), ())
                shared = Differentiable(made.graph, len(made.inputs), (), joined=True)
                shared.build = trainer(signature, function, NOBODY, backends, shared)
                shared.build_double = doubler(function, backends)
                program = _compile(copy_graph(made.graph), signature, function, backends)
                values, given = None, ()
                computed = [node for node in segments.segments[number].sources if node.op != "placeholder"]
                if computed:
                    source, given = source_values(graph, computed)
                    values = _compile(source, Signature(given, (), ()), function, backends)
                return Double(
                    shared.call(program, lambda: made.graph), made.inputs, made.gradients, values, given
                )
        except Exception as error:  # noqa: BLE001  (a failure of ours becomes an eager run)
            function.note_backward(error)
            return None

    return build


def _trained(rerun: Rerun, joint: Joint) -> frozenset[fx.Node]:
    """The placeholders of a joint graph that are differentiated by."""
    pairs = zip(rerun.placeholders, joint.placeholders, strict=True)
    return frozenset(twin for node, twin in pairs if requires_grad(node))


def _forward(
    halves: Split,
    region: Region | Signature,
    shared: Differentiable,
    function: Function,
    backends: Sequence[Backend],
    observer: Observer,
) -> tuple[Callable[[], Run], tuple[int, ...]]:
    """What waits for the program of the forward half, and the numbers of those of the region's tensors that it
    takes."""
    placeholders = [node for node in halves.forward.nodes if node.op == "placeholder"]
    n_given = sum(not node.meta["bound"] for node in placeholders)
    given, bound = halves.inputs[:n_given], halves.inputs[n_given:]
    place = {number: i for i, number in enumerate(halves.inputs)}
    signature = Signature(
        given,
        tuple(region.bound[number - len(region.inputs)] for number in bound),
        tuple((place[number], result) for number, result in shared.mutations),
    )
    return _start(halves.forward, signature, function, backends, observer), given


def _backward(
    backward: Backward, asked: Asked, function: Function, backends: Sequence[Backend]
) -> CompiledBackward:
    finish = _start(backward.graph, Signature(backward.inputs, (), ()), function, backends)

    def make() -> Run | None:
        try:
            with _compiling(function):
                return finish()
        except Exception as error:  # noqa: BLE001  (a failure of ours becomes an eager run)
            function.note_backward(error)
            return None

    return CompiledBackward(Awaited(make), backward.inputs, backward.gradients, asked)


def _compile(graph: fx.Graph, signature: Signature, function: Function, backends: Sequence[Backend]) -> Any:
    return _start(graph, signature, function, backends)()


def _start(
    graph: fx.Graph,
    signature: Signature,
    function: Function,
    backends: Sequence[Backend],
    observer: Observer = NOBODY,
) -> Callable[[], Any]:
    """Begin to compile a program: the call of what this gives waits for its machine code."""
    parts = transform(graph, function, backends, observer)
    return start_parts(parts, cast(Any, signature), observer, function.note_fault, trains=True)
