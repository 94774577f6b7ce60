"""The pipeline of a compilation, top to bottom, in `build_entry`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import torch
from torch import fx

from lampwork.backends.eager import EagerBackend
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.observer import Observer
from lampwork.backends.protocol import Backend
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.compiled.islands import with_islands
from lampwork.compiled.training import doubler, open_trainer, trainer
from lampwork.compiled.transformed import Transforming
from lampwork.config import using_config
from lampwork.differentiation.segments import requires_grad
from lampwork.errors import BackendError
from lampwork.graph.concrete import concrete_graph, known_sizes, symbol_names
from lampwork.graph.copying import copy_graph
from lampwork.graph.symbols import bits_of_float, held
from lampwork.graph.verify import verify
from lampwork.partitioning import compile_for_sizes, compile_parts, partition
from lampwork.partitioning.chain import executable
from lampwork.partitioning.sizes import ForNumbers, for_all_sizes
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import is_detached, view_base
from lampwork.runtime import Executable, Numbers, make_entry
from lampwork.runtime.autograd import (
    Differentiable,
    DifferentiableCall,
    cut_off,
    localizing,
    without_gradients,
)
from lampwork.runtime.cuda_graphs import Graphed
from lampwork.runtime.opened import Later
from lampwork.runtime.program import Program
from lampwork.standard import functools, struct


def build_entry(region: Region, function: Function, observer: Observer, backends: Sequence[Backend]) -> Any:
    """The pipeline: a captured region becomes an entry of the runtime. `observer` is told of each stage."""
    observer.captured(function.fn, region)
    if region.graph is None:
        observer.finished()
        return make_entry(region, None, on_failure=function.on_failure, counted=function.root)

    graph = region.graph
    if function.config.verify:
        verify(graph)
    reference = copy_graph(graph)  # passes work in place; stages and backward() need the graph as recorded
    observer.recorded(reference)
    reference = with_islands(region, reference)

    differentiable = _differentiable(region, graph, reference)
    # Of weights that only packed copies are read of, the memory is gone, and backward reads it.
    if differentiable is not None and function.config.weights != "packed":
        differentiable.build = trainer(region, function, observer, backends, differentiable)
        differentiable.build_double = doubler(function, backends)
        if region.symbols:
            differentiable.build_open = open_trainer(region, function, observer, backends, differentiable)
    made = _foreseen(region, differentiable, reference)
    if made is None:
        made = _forward(region, graph, reference, differentiable, observer, function, backends)
    observer.finished()
    return make_entry(
        region,
        localizing(made.program, region.dtensors) if region.dtensors else made.program,
        specialize=made.specialize,
        numbers=made.numbers,
        on_failure=function.on_failure,
        counted=function.root,
        reuse_results=function.config.mode == "reduce-overhead",
    )


@record
class Made:
    """What runs a region's graph: one program, or what makes one for each tuple of sizes."""

    program: Any = None
    specialize: Callable[[tuple[int, ...]], Any] | None = None
    numbers: Numbers = field(default_factory=Numbers)


def _foreseen(region: Region, differentiable: Differentiable | None, reference: fx.Graph) -> Made | None:
    """What trains a region that will be differentiated for sure, of sizes that are numbers."""
    if differentiable is None or (region.symbols and symbol_names(reference)):
        return None
    call = differentiable.call(None, lambda: reference)
    return Made(call) if call.foresee() else None


def _forward(
    region: Region,
    graph: fx.Graph,
    reference: fx.Graph,
    differentiable: Differentiable | None,
    observer: Observer,
    function: Function,
    backends: Sequence[Backend],
) -> Made:
    """What runs a region's graph, on whose results autograd nodes are put if they can require grad."""
    passes = Transforming.of(graph, function, backends, observer, region.mutations)
    is_open = bool(region.symbols and symbol_names(reference))
    compiled = _kept(passes, is_open, region)
    if compiled is None:
        parts = passes.run()
        if is_open or (region.symbols and symbol_names(graph)):
            compiled = compile_for_sizes(parts, region, observer, function.note_fault)
            is_whole = compiled.once
        else:
            compiled = compile_parts(parts, region, observer, function.note_fault)
            is_whole = isinstance(compiled, Executable | Graphed)
        if is_whole:
            passes.keep()
    if isinstance(compiled, ForNumbers):
        made = _for_numbers(region, reference, differentiable, compiled, function)
        # What compiling asked of the sizes has become conditions; whatever asks later only prints.
        region.conditions = tuple(region.conditions)
        return made
    detached = () if region.mutations else _detached_inputs(reference)
    return Made(cut_off(detached) if detached else _with_gradients(differentiable, reference, compiled))


def _kept(passes: Transforming, is_open: bool, region: Region) -> Any:
    """What compiling the parts of a graph would give, from the cache; None if it is not there."""
    program = passes.found()
    compiled: Any = None
    if is_open and isinstance(program, SymbolicProgram):
        compiled = for_all_sizes(program, region)
    elif not is_open and isinstance(program, Program):
        try:
            compiled = executable(program, region)
        except BackendError:  # said again, and handled, where it is compiled
            return None
    if compiled is not None:
        passes.skip()
    return compiled


def _for_numbers(
    region: Region,
    reference: fx.Graph,
    differentiable: Differentiable | None,
    compiled: ForNumbers,
    function: Function,
) -> Made:
    """What runs a graph with symbols: a program for each tuple of sizes, which takes other numbers with the call."""
    in_keys = {name: number for name, number in region.derived.items() if name in compiled.keys}
    wanted = compiled.keys.union(*(number.symbols() for number in in_keys.values()))
    if not compiled.scalars:
        wanted |= symbol_names(reference)  # backward computes the graph as recorded
    keys = tuple(i for i, symbol in enumerate(region.symbols) if symbol.name in wanted)
    names = [region.symbols[i].name for i in keys]
    taken = frozenset[str]().union(*(index.symbols() for index in compiled.scalars))
    computed = {
        name: number for name, number in region.derived.items() if name in taken or number.function is held
    }

    def make(values: tuple[int, ...]) -> Any:
        numbers = dict(zip(names, values, strict=True))
        try:
            floats = {name: bits_of_float(number.evaluate(numbers)) for name, number in in_keys.items()}
        except (ArithmeticError, ValueError, TypeError, struct.error):
            return _leave_to_eager  # the program's own arithmetic fails for these numbers
        sizes = {**numbers, **floats}

        def plan() -> Any:
            with using_config(function.config):
                return compiled.make(sizes)

        # What trains the region for all sizes has a forward of its own.
        is_open = differentiable is not None and differentiable.opened() is not None
        program = Later(plan) if is_open else plan()
        made = _with_gradients(differentiable, reference, program, numbers)
        if compiled.scalars and isinstance(made, DifferentiableCall):
            return functools.partial(_run_with_scalars, region, made)
        if compiled.scalars and made is not program:
            return functools.partial(_cut_off_with_scalars, reference, program)
        return made

    hints = tuple(region.symbols[i].hint for i in keys)
    first = make(hints)  # a failure shows now, and the call at hand needs it at once
    numbers = Numbers(keys, compiled.scalars, computed)
    if not keys:
        return Made(first, numbers=numbers)
    ready = {hints: first}

    def specialize(values: tuple[int, ...]) -> Any:
        found = ready.pop(values, None)
        if found is not None:
            return found
        try:
            return make(values)
        except Exception as error:  # noqa: BLE001  (as in Function: a failure of ours becomes an eager run)
            function.note_failure(error)
            numbers = dict(zip(names, values, strict=True))
            if differentiable is not None:
                call = _with_gradients(differentiable, reference, None, numbers)
                return functools.partial(_run_with_scalars, region, call) if compiled.scalars else call
            if compiled.scalars:
                return functools.partial(_run_eager, region, reference)
            return _eager(region, reference, numbers)

    return Made(None, specialize, numbers)


def _eager(region: Region, reference: fx.Graph, numbers: Mapping[str, int]) -> Any:
    """A region's graph in eager PyTorch, for these values of its symbols."""
    return compile_parts(partition(concrete_graph(reference, numbers), [EagerBackend()]), region)


def _run_eager(
    region: Region, reference: fx.Graph, tensors: Any, scalars: tuple[int, ...], values: tuple[int, ...]
) -> Any:
    return _eager(region, reference, _by_name(region, values))(tensors)


def _by_name(region: Region, values: Sequence[int]) -> dict[str, int]:
    return {symbol.name: value for symbol, value in zip(region.symbols, values, strict=True)}


def _run_with_scalars(
    region: Region, call: DifferentiableCall, tensors: Any, scalars: tuple[int, ...], values: tuple[int, ...]
) -> Any:
    """A differentiable program that takes scalars; what is no Executable gets the values of all symbols as well."""
    return call.run(tensors, scalars, _by_name(region, values))


def _cut_off_with_scalars(
    reference: fx.Graph, program: Any, tensors: Any, scalars: tuple[int, ...], values: tuple[int, ...]
) -> Any:
    del values
    return _with_gradients(None, reference, lambda given: program(given, scalars))(tensors)


def _leave_to_eager(*given: Any) -> Any:
    """A program that fails before it did anything, so that the call runs eager."""
    raise ArithmeticError("a number of the program cannot be computed for this call's numbers")


def _differentiable(region: Region, graph: fx.Graph, reference: fx.Graph) -> Differentiable | None:
    """How results are differentiated, None if none can require grad. What that needs of a program is appended to what
    `graph` returns; `reference` stays as it was recorded."""
    if not region.state.grad_enabled or not any(
        node.meta["val"].requires_grad for node in _inputs(reference)
    ):
        return None
    if not region.mutations and _is_unknown_to_autograd(reference):
        return None
    made = Differentiable(
        reference, len(region.inputs), region.mutations, region.pieces, region.fresh_versions
    )
    if made.needed:
        recorded = {node.name: node for node in graph.nodes}
        by_name = {
            node.name: recorded[name]
            for node in reference.nodes
            if (name := node.meta.get("recorded_as", node.name)) in recorded
        }
        output = next(iter(reversed(graph.nodes)))
        results = cast("tuple[fx.Node, ...]", output.args[0])
        output.args = ((*results, *(by_name[name] for name in made.needed)),)
    return made


def _is_unknown_to_autograd(graph: fx.Graph) -> bool:
    """Whether no result requires grad, and what does is only looked at, by views: autograd saves nothing of those."""
    results = cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])
    computed = (node for node in graph.nodes if node.op == "call_function" and view_base(node) is None)
    return not any(map(requires_grad, (*results, *computed)))


def _detached_inputs(graph: fx.Graph) -> tuple[int, ...]:
    """The inputs of which the results are `detach`, if they are no more than that, as the loss that a step returns."""
    results = cast("tuple[fx.Node, ...]", next(iter(reversed(graph.nodes))).args[0])
    sources = [node.args[0] for node in results if node.target is torch.ops.aten.detach.default]
    inputs = _inputs(graph)
    if len(sources) < len(results) or any(source not in inputs for source in sources):
        return ()
    return tuple(inputs.index(cast(fx.Node, source)) for source in sources)


def _inputs(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _with_gradients(
    differentiable: Differentiable | None,
    reference: fx.Graph,
    program: Any,
    sizes: Mapping[str, int] | None = None,
) -> Any:
    """`program` itself if no result can require grad, else one whose results have autograd nodes.

    `sizes`: the numbers that `program` was made for, of the symbols in `reference`.
    """
    if differentiable is not None:
        concrete = functools.partial(known_sizes, reference, sizes) if sizes else lambda: reference
        return differentiable.call(program, concrete, sizes)
    if not any(node.meta["val"].requires_grad for node in _inputs(reference)):
        return program
    results = cast("tuple[fx.Node, ...]", next(iter(reversed(reference.nodes))).args[0])
    detached = tuple(number for number, node in enumerate(results) if is_detached(node))
    return without_gradients(program, detached) if detached else program
