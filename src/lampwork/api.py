"""`lampwork.compile`, and the pipeline of a compilation, top to bottom, in `build`."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, overload

from torch import fx, nn

from lampwork import config as config_module
from lampwork import counters, logs, runtime
from lampwork.backends.protocol import Backend
from lampwork.backends.registry import get_backend
from lampwork.capture.printing import format_guards
from lampwork.capture.region import Region
from lampwork.config import using_config
from lampwork.errors import OptionError
from lampwork.function import Function
from lampwork.graph.concrete import concrete_graph
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.printing import format_graph
from lampwork.graph.verify import verify
from lampwork.module import CompiledModule
from lampwork.partition import Part, compile_for_sizes, compile_parts, format_partition, partition
from lampwork.passes.pipeline import format_records, run_passes
from lampwork.rewrite.aliasing import is_detached
from lampwork.runtime import make_entry
from lampwork.runtime.autograd import DifferentiableCall
from lampwork.stages import Stages, dump, keep

F = TypeVar("F", bound=Callable[..., Any])

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> F: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Callable[[F], F]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Make `model`, a function or an `nn.Module`, run faster with the same answers.

    Nothing is compiled yet: the first call with each kind of arguments compiles for it. Also a decorator, with or
    without arguments. The keywords are those of `torch.compile`.

    Args:
        model: a Python function, a bound method or a module. A compiled module stays a module: parameters,
            `state_dict()`, `train()`, `to()`, hooks and attributes are the original's.
        fullgraph: raise GraphBreakError where the function cannot be captured whole.
        dynamic: None: compile for the sizes and ints of the first call, and where a later one brings others, once more
            with those left open. True: leave them open from the first call on. False: never.
        backend: a name from `lampwork.list_backends()` or a Backend.
        mode: accepted as torch.compile does; all modes generate the same code today.
        options: any of `lampwork.config.Config`'s fields.
        disable: return `model` as it is.

    Raises:
        OptionError: an unknown or ill-typed option, mode or backend.
    """
    if mode is not None and mode not in MODES:
        near = difflib.get_close_matches(mode, MODES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise OptionError(f"unknown mode {mode!r}", fix=f"{hint}the known modes are {', '.join(MODES)}")
    chosen = get_backend(backend) if isinstance(backend, str) else backend
    options = dict(options or {})
    config_module.check_names(options)
    config = config_module.with_options(config_module.current(), options)
    if model is None:
        return lambda m: compile(  # pyright: ignore[reportUnknownLambdaType]
            m,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=chosen,
            mode=mode,
            options=options,
            disable=disable,
        )
    if not callable(model):
        raise OptionError(
            f"compile() takes a function or a module, got {type(model).__name__}",
            fix="pass the model itself, not its result",
        )
    if disable:
        return model

    def build(region: Region, function: Function, stages: Stages) -> Any:
        return build_entry(region, function, stages, chosen)

    if isinstance(model, CompiledModule):
        model = model._lampwork_original
    function = Function.of(model, config, build, fullgraph=fullgraph, dynamic=dynamic)
    return _dress(model, function)


def build_entry(region: Region, function: Function, stages: Stages, backend: Backend) -> Any:
    """The pipeline: a captured region becomes an entry of the runtime."""
    keep(stages, "guards", "guards", lambda: format_guards(region))
    if region.graph is None:
        dump(stages)
        return make_entry(region, None, on_failure=function.on_failure, counted=function.root)

    graph = region.graph
    if function.config.verify:
        verify(graph)
    reference = copy_graph(graph)  # passes work in place; stages and backward() need the graph as recorded
    stages.aten = reference
    keep(stages, "graph", "graph", lambda: format_graph(reference))

    records = run_passes(graph, function.config)
    stages.add("passes", lambda: format_records(records))
    keep(stages, "optimized", "graph", lambda: format_graph(graph))

    parts = partition(graph, [backend])
    keep(stages, "partition", "partition", lambda: format_partition(parts))
    specialize: Callable[[tuple[int, ...]], Any] | None = None
    program: Any = None
    if region.n_values:
        specialize = _for_sizes(region, reference, parts, stages, function)
        # What compiling asked of the sizes has become conditions; whatever asks later only prints.
        region.conditions = tuple(region.conditions)
    else:
        program = _differentiable(region, reference, compile_parts(parts, region, stages))
    for stage, topic in (("fusion", "loops"), ("kernels", "loops"), ("program", "program")):
        if logs.enabled(topic) and stage in stages:
            logs.emit(topic, f"{stages.name} {stage}\n{stages.text(stage)}")
    dump(stages)

    stages.counts = {"ATen nodes": _calls(reference), "after passes": _calls(graph), **stages.counts}
    stages.seconds = {
        "capture": region.stats["capture_seconds"],
        "passes": sum(record.seconds for record in records),
        **stages.seconds,
    }
    return make_entry(
        region, program, specialize=specialize, on_failure=function.on_failure, counted=function.root
    )


def _for_sizes(
    region: Region, reference: fx.Graph, parts: Sequence[Part], stages: Stages, function: Function
) -> Callable[[tuple[int, ...]], Any]:
    """What makes, for the values of a region's symbols, what runs its graph."""
    names = [symbol.name for symbol in region.symbols[: region.n_values]]
    compiled = compile_for_sizes(parts, region, stages)

    def make(values: tuple[int, ...]) -> Any:
        numbers = dict(zip(names, values, strict=True))
        with using_config(function.config):
            return _differentiable(region, concrete_graph(reference, numbers), compiled(numbers))

    hints = tuple(symbol.hint for symbol in region.symbols[: region.n_values])
    ready = {hints: make(hints)}  # a failure shows now, and the call at hand needs it at once

    def specialize(values: tuple[int, ...]) -> Any:
        return ready.pop(values, None) or make(values)

    return specialize


def _calls(graph: fx.Graph) -> int:
    return sum(node.op == "call_function" for node in graph.nodes)


def _differentiable(region: Region, reference: fx.Graph, program: Any) -> Any:
    """`program` itself if nothing can require grad, else one that attaches a recomputing backward."""
    specs = [node.meta["val"] for node in reference.nodes if node.op == "placeholder"]
    if not any(spec.requires_grad for spec in specs):
        return program
    results = cast("tuple[fx.Node, ...]", next(iter(reversed(reference.nodes))).args[0])
    detached = tuple(number for number, node in enumerate(results) if is_detached(node))
    if not region.state.grad_enabled and not detached:
        return program
    flags = tuple(bool(node.meta["val"].requires_grad) for node in results)

    def recompute(tensors: Any) -> Any:
        return run_graph(reference, tensors)

    return DifferentiableCall(
        program,
        recompute,
        flags,
        mutated=tuple(number for number, _ in region.mutations),
        random=any(node.meta.get("random") for node in reference.nodes),
        detached=detached,
    )


def _dress(model: Any, function: Function) -> Any:
    """What the user gets: the C++ callable with a function's attributes, or a module around it."""
    compiled = function.compiled
    if isinstance(model, nn.Module):
        return CompiledModule(model, compiled)
    functools.update_wrapper(compiled, model)
    return compiled


def stats() -> dict[str, float]:
    """Counters since start or `reset()`; see `lampwork.counters.Counters` for what each counts."""
    return counters.snapshot(runtime.stats())


def reset() -> None:
    """Set all counters to zero."""
    counters.reset(runtime.stats())
