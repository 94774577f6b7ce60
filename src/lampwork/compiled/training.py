"""The pipeline of a region that is trained: its joint graph becomes the programs of forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.observer import NOBODY, Observer
from lampwork.backends.protocol import Backend
from lampwork.capture.model.region import Region
from lampwork.capture.state.contexts import beyond_function_modes
from lampwork.compiled.function import Function
from lampwork.compiled.transformed import Transforming
from lampwork.config import using_config
from lampwork.differentiation.double import record_double, source_values
from lampwork.differentiation.joint import Asked, Joint, record_joint
from lampwork.differentiation.saved import Probe, Savings
from lampwork.differentiation.segments import Segments, memory_of, requires_grad
from lampwork.differentiation.split import Backward, Split, lay_out_saved, split
from lampwork.errors import BackendError, CaptureError, UnsupportedOpError
from lampwork.graph.concrete import scope_of
from lampwork.graph.copying import copy_graph
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import held
from lampwork.partitioning import compile_open, start_parts
from lampwork.partitioning.chain import executable
from lampwork.partitioning.foreign import pass_context
from lampwork.partitioning.sizes import ForNumbers, half_for_all_sizes
from lampwork.records import record
from lampwork.runtime import trim_memory
from lampwork.runtime.autograd import Differentiable
from lampwork.runtime.doubles import BuildDouble, Double
from lampwork.runtime.opened import BuildOpen, OpenBackward, Opened
from lampwork.runtime.program import Program
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
                returned = _returned(rerun, shared)
                probe = Probe(rerun.graph, rerun.segments) if foreseen else None
                joint = record_joint(rerun.graph, rerun.segments, returned, asked, probe)
                if foreseen and joint.savings is None:
                    return None
                halves = split(joint, _trained(rerun, joint), function.config.memory_budget)
                observer.differentiated(halves)
                exposed = _exposed(halves, rerun, returned)
                # Who was there before the forward was compiled looks at that of the trained region.
                seen = observer if foreseen else observer.half("forward")
                signature, given = _forward_signature(halves, region, shared)
                forward = _start(halves.forward, signature, function, backends, seen)
                lay_out_saved(halves, forward.results, pass_context(function.config, backends).infer)
                backwards = {
                    number: _backward(backward, asked[number], function, backends, observer)
                    for number, backward in halves.backwards.items()
                }
                program = forward.finish()
                rerun.savings = rerun.savings or joint.savings
                trim_memory()  # compilation, or eager's backward, has left much of it
                return Trained(program, given, len(returned), exposed, backwards)
        except Exception as error:  # noqa: BLE001  (a failure of ours becomes an eager run)
            if not (foreseen and isinstance(error, CaptureError)):
                function.note_backward(error)
            return None

    return build


def open_trainer(
    region: Region,
    function: Function,
    observer: Observer,
    backends: Sequence[Backend],
    shared: Differentiable,
) -> BuildOpen:
    """What compiles forward and backward of a region for all sizes, once it is known what backward asks of it."""

    def build(
        rerun: Rerun, asked: Mapping[int, Asked], numbers: Mapping[str, int], savings: Savings | None
    ) -> Opened | None:
        scope = scope_of(rerun.graph)
        wanted = _opened(rerun.segments, asked, numbers)
        if scope is None or wanted is None:
            return None
        try:
            with _compiling(function):
                returned = _returned(rerun, shared)
                joint = record_joint(
                    rerun.graph, rerun.segments, returned, wanted, Probe(rerun.graph, rerun.segments)
                )
                for number, stretch in joint.stretches.items():
                    asked[number].check(stretch.gradients, numbers)
                savings = joint.savings or savings
                if savings is None:
                    return None
                halves = split(joint, _trained(rerun, joint), function.config.memory_budget)
                observer.differentiated(halves.at(scope.hints))
                exposed = _exposed(halves, rerun, returned)
                signature, given = _forward_signature(halves, region, shared)
                forward, results = _compile_open(
                    halves.forward, signature, function, backends, observer.half("forward")
                )
                lay_out_saved(halves, results, pass_context(function.config, backends).infer)
                backwards = {
                    number: _compile_open(
                        backward.graph,
                        Signature(backward.inputs, (), ()),
                        function,
                        backends,
                        observer.half("backward"),
                    )[0]
                    for number, backward in halves.backwards.items()
                }
        except Exception as error:  # noqa: BLE001  (a failure of ours becomes a backward for each size)
            function.note_backward(error, "backward is compiled for each size apart")
            return None
        keys = forward.keys.union(*(backward.keys for backward in backwards.values()))
        trim_memory()  # compilation, or eager's backward, has left much of it
        return Opened(
            forward.make,
            given,
            len(returned),
            exposed,
            {
                number: OpenBackward(backwards[number].make, half.inputs, half.gradients, wanted[number])
                for number, half in halves.backwards.items()
            },
            savings,
            tuple(scope.conditions[len(region.conditions) :]),
            {
                name: number
                for name, number in scope.derived.items()
                if name in keys or number.function is held
            },
        )

    return build


def _opened(
    segments: Segments, asked: Mapping[int, Asked], numbers: Mapping[str, int]
) -> dict[int, Asked] | None:
    """What is asked with these values of the symbols, for all of them; None if it cannot be said."""
    opened: dict[int, Asked] = {}
    for number, each in asked.items():
        made = each.opened([node.meta["val"] for node in segments.segments[number].results], numbers)
        if made is None:
            return None
        opened[number] = made
    return opened


@contextlib.contextmanager
def _compiling(function: Function) -> Generator[None]:
    """The options of a function, and none of the modes that its caller is in."""
    with using_config(function.config), pristine.no_grad(), below_autocast(), beyond_function_modes():
        yield


def _returned(rerun: Rerun, shared: Differentiable) -> tuple[fx.Node, ...]:
    """What a forward gives: the region's results, then what else is needed of it."""
    by_name = {node.name: node for node in rerun.graph.nodes}
    return (*rerun.segments.results, *(by_name[name] for name in shared.needed))


def _exposed(halves: Split, rerun: Rerun, returned: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """As in `Trained`."""
    saved = {memory_of(returned[number]): number for number in halves.exposed}
    # What a collective gave is returned to be kept; the caller may not get to see it.
    return {root: number for root, number in saved.items() if root in rerun.places}


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


def _forward_signature(
    halves: Split, region: Region | Signature, shared: Differentiable
) -> tuple[Signature, tuple[int, ...]]:
    """Of the forward half, with the numbers of those of the region's tensors that it takes."""
    placeholders = [node for node in halves.forward.nodes if node.op == "placeholder"]
    n_given = sum(not node.meta["bound"] for node in placeholders)
    given, bound = halves.inputs[:n_given], halves.inputs[n_given:]
    place = {number: i for i, number in enumerate(halves.inputs)}
    signature = Signature(
        given,
        tuple(region.bound[number - len(region.inputs)] for number in bound),
        tuple((place[number], result) for number, result in shared.mutations),
    )
    return signature, given


def _backward(
    backward: Backward, asked: Asked, function: Function, backends: Sequence[Backend], observer: Observer
) -> CompiledBackward:
    signature = Signature(backward.inputs, (), ())
    finish = _start(backward.graph, signature, function, backends, observer.half("backward")).finish

    def make() -> Run | None:
        try:
            with _compiling(function):
                return finish()
        except Exception as error:  # noqa: BLE001  (a failure of ours becomes an eager run)
            function.note_backward(error)
            return None

    return CompiledBackward(Awaited(make), backward.inputs, backward.gradients, asked)


def _compile(graph: fx.Graph, signature: Signature, function: Function, backends: Sequence[Backend]) -> Any:
    return _start(graph, signature, function, backends).finish()


@record
class Started:
    """A program that is being compiled: the call of `finish` waits for its machine code. `results`: the specs of what
    it returns."""

    finish: Callable[[], Any]
    results: Sequence[TensorSpec]


def _start(
    graph: fx.Graph,
    signature: Signature,
    function: Function,
    backends: Sequence[Backend],
    observer: Observer = NOBODY,
) -> Started:
    """Begin to compile a program, or take it from the cache."""
    passes = Transforming.of(graph, function, backends, observer, signature.mutations)
    program = passes.found()
    if isinstance(program, Program):
        with contextlib.suppress(BackendError):  # said again, and handled, where it is compiled
            made = executable(program, cast(Any, signature), trains=True)
            passes.skip()
            return Started(lambda: made, passes.results)
    parts = passes.run()
    region = cast(Any, signature)
    finish = start_parts(parts, region, observer, function.note_fault, trains=True, whole=passes.keep)
    return Started(finish, passes.results)


def _compile_open(
    graph: fx.Graph,
    signature: Signature,
    function: Function,
    backends: Sequence[Backend],
    observer: Observer,
) -> tuple[ForNumbers, Sequence[TensorSpec]]:
    """What runs a half for all sizes, and the specs of what it returns.

    Raises:
        UnsupportedOpError: no backend leaves all sizes of the graph open.
    """
    passes = Transforming.of(graph, function, backends, observer, signature.mutations)
    program = passes.found()
    if program is not None:
        with contextlib.suppress(BackendError):  # said again where it is compiled
            found = half_for_all_sizes(program, graph, cast(Any, signature))
            if found is not None:
                passes.skip()
                return found, passes.results
    compiled = compile_open(passes.run(), cast(Any, signature), observer)
    if compiled is None:
        raise UnsupportedOpError("a half of a training step is not compiled for all sizes at once")
    passes.keep()
    return compiled, passes.results
