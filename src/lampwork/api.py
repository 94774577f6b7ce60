"""`lampwork.compile`, and the pipeline of a compilation, top to bottom, in `build`."""

from __future__ import annotations

import difflib
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast, overload

from torch import Tensor, fx, nn

from lampwork import config as config_module
from lampwork import counters, logs, runtime
from lampwork.backends.eager import EagerBackend
from lampwork.backends.protocol import Backend
from lampwork.backends.registry import resolve_backends
from lampwork.capture.printing import format_guards
from lampwork.capture.region import Region
from lampwork.config import Config, using_config
from lampwork.errors import OptionError
from lampwork.function import Function
from lampwork.graph.concrete import concrete_graph
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.printing import format_graph
from lampwork.graph.symbols import bits_of_float
from lampwork.graph.verify import verify
from lampwork.module import CompiledModule
from lampwork.partition import Part, compile_for_sizes, compile_parts, format_partition, partition
from lampwork.partition.foreign import pass_context
from lampwork.passes.pipeline import format_records, run_passes
from lampwork.rewrite.aliasing import is_detached
from lampwork.runtime import make_entry
from lampwork.runtime.autograd import DifferentiableCall
from lampwork.stages import Stages, dump, keep

F = TypeVar("F", bound=Callable[..., Any])
TorchBackend = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Any]]
BackendChoice = str | Backend | type[Backend] | TorchBackend

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: BackendChoice | Sequence[BackendChoice] = "native",
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
    backend: BackendChoice | Sequence[BackendChoice] = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Callable[[F], F]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: BackendChoice | Sequence[BackendChoice] = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Make `model`, a function or an `nn.Module`, run faster with the same answers.

    Nothing is compiled yet: the first call with each kind of arguments compiles for it. Also a decorator, with or
    without arguments. The keywords are those of `torch.compile`.

    What is returned has two attributes more: `entries`, the versions compiled so far, each with its guards, regions and
    stages, and `stages`, those of the version compiled last.

    Args:
        model: a module, or anything that can be called: a Python function, a method, a static or class method, a
            partial, an object with `__call__`, a function of torch. A compiled module stays a module: parameters,
            `state_dict()`, `train()`, `to()`, hooks and attributes are the original's. What is compiled already is
            compiled afresh, from the original.
        fullgraph: raise GraphBreakError where the function cannot be captured whole.
        dynamic: None: compile for the sizes and ints of the first call, and where a later one brings others, once more
            with those left open. True: leave them open from the first call on. False: never.
        backend: a name from `lampwork.list_backends()`, a Backend, a class of one, or a function as `torch.compile`
            takes them: `fn(gm, example_inputs)` gets an fx.GraphModule of ATen operators and returns what is to run in
            its place. Or a list of such: each operator goes to the first that takes it, what is left runs in eager
            PyTorch.
        mode: accepted as torch.compile does; all modes generate the same code today.
        options: any of `lampwork.config.Config`'s fields.
        disable: return `model` as it is.

    Raises:
        OptionError: an unknown or ill-typed option, mode or backend, or a model that cannot be called.
    """
    checked = check_keywords(fullgraph, dynamic, backend, mode, options, disable)
    if model is None:
        return functools.partial(
            compile,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=checked.backends,
            mode=mode,
            options=dict(options or {}),
            disable=disable,
        )
    if isinstance(model, (staticmethod, classmethod)):
        # Under a decorator of the class body: what they wrap is compiled.
        inner: Any = compile(
            model.__func__,
            fullgraph=fullgraph,
            dynamic=dynamic,
            backend=checked.backends,
            options=options,
            disable=disable,
        )
        return type(model)(inner)
    if not callable(model):
        raise OptionError(
            f"compile() takes a function or a module, got {type(model).__name__}",
            fix="pass the model itself, not its result",
        )
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise OptionError(
            f"compile() takes a module, got the class {model.__name__}", fix="compile an instance of it"
        )
    if disable:
        return model
    model = original_of(model)
    return _dress(model, make_function(model, checked))


@dataclass(frozen=True, slots=True)
class Keywords:
    """What `compile` was called with, checked; `config` is complete."""

    fullgraph: bool
    dynamic: bool | None
    backends: tuple[Backend, ...]
    config: Config


def check_keywords(
    fullgraph: Any = False,
    dynamic: Any = None,
    backend: Any = "native",
    mode: Any = None,
    options: Any = None,
    disable: Any = False,
) -> Keywords:
    """The keywords of `compile` with names resolved.

    Raises:
        OptionError: an unknown or ill-typed option, mode or backend.
    """
    for name, value in (("fullgraph", fullgraph), ("disable", disable)):
        if type(value) is not bool:
            raise OptionError(
                f"{name} takes True or False, got {value!r}", fix=f"pass {name}=True or leave it out"
            )
    if dynamic not in (None, True, False) or isinstance(dynamic, (int, float)) is not isinstance(
        dynamic, bool
    ):
        raise OptionError(f"dynamic takes True, False or None, got {dynamic!r}", fix="leave it out for None")
    if mode is not None and mode not in MODES:
        near = difflib.get_close_matches(str(mode), MODES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise OptionError(f"unknown mode {mode!r}", fix=f"{hint}the known modes are {', '.join(MODES)}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(
            f"options takes a mapping, got {type(options).__name__}", fix='pass options={"name": value}'
        )
    given = cast("dict[str, Any]", dict(options or {}))
    config = config_module.with_options(config_module.current(), given)
    return Keywords(fullgraph, dynamic, resolve_backends(backend), config)


def original_of(model: Any) -> Any:
    """What a compiled callable was made of; anything else as it is."""
    if isinstance(model, CompiledModule):
        return model._lampwork_original
    owner = _owner(model)
    return model if owner is None else owner.original


def function_of(compiled: Any) -> Function:
    """The state behind what `compile` returned.

    Raises:
        TypeError: it was not made by `compile`.
    """
    inner = compiled._lampwork_compiled if isinstance(compiled, CompiledModule) else compiled
    owner = _owner(inner)
    if owner is None:
        raise TypeError(f"{compiled!r} was not made by lampwork.compile")
    return owner


def _owner(compiled: Any) -> Function | None:
    owner = getattr(compiled.on_miss, "__self__", None) if isinstance(compiled, runtime.Compiled) else None
    return owner if isinstance(owner, Function) else None


def make_function(model: Any, keywords: Keywords, *, quiet: bool = False) -> Function:
    """The state for compiling a callable; `quiet` as in Function."""

    def build(region: Region, function: Function, stages: Stages) -> Any:
        return build_entry(region, function, stages, keywords.backends)

    return Function.of(
        model,
        keywords.config,
        build,
        fullgraph=keywords.fullgraph,
        dynamic=keywords.dynamic,
        quiet=quiet,
    )


def build_entry(region: Region, function: Function, stages: Stages, backends: Sequence[Backend]) -> Any:
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

    ctx = pass_context(function.config, backends)
    records = run_passes(graph, function.config, ctx=ctx)
    for fault in ctx.faults:
        function.note_fault(fault, "the graph as it was before")
    stages.add("passes", lambda: format_records(records))
    keep(stages, "optimized", "graph", lambda: format_graph(graph))

    parts = partition(graph, backends, function.note_fault)
    keep(stages, "partition", "partition", lambda: format_partition(parts))
    specialize: Callable[[tuple[int, ...]], Any] | None = None
    program: Any = None
    if region.n_values:
        specialize = _for_sizes(region, reference, parts, stages, function)
        # What compiling asked of the sizes has become conditions; whatever asks later only prints.
        region.conditions = tuple(region.conditions)
    else:
        program = _differentiable(
            region, reference, compile_parts(parts, region, stages, function.note_fault)
        )
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
    compiled = compile_for_sizes(parts, region, stages, function.note_fault)

    def make(values: tuple[int, ...]) -> Any:
        numbers = dict(zip(names, values, strict=True))
        try:
            floats = {
                name: bits_of_float(number.evaluate(numbers)) for name, number in region.derived.items()
            }
        except (ArithmeticError, ValueError, TypeError, struct.error):
            return _leave_to_eager  # the program's own arithmetic fails for these numbers
        with using_config(function.config):
            return _differentiable(region, reference, compiled({**numbers, **floats}), numbers)

    hints = tuple(symbol.hint for symbol in region.symbols[: region.n_values])
    ready = {hints: make(hints)}  # a failure shows now, and the call at hand needs it at once

    def specialize(values: tuple[int, ...]) -> Any:
        found = ready.pop(values, None)
        if found is not None:
            return found
        try:
            return make(values)
        except Exception as error:  # noqa: BLE001  (as in Function: a failure of ours becomes an eager run)
            function.note_failure(error)
            concrete = concrete_graph(reference, dict(zip(names, values, strict=True)))
            return compile_parts(partition(concrete, [EagerBackend()]), region)

    return specialize


def _leave_to_eager(tensors: Any) -> Any:
    """A program that fails before it did anything, so that the call runs eager."""
    raise ArithmeticError("a number of the program cannot be computed for this call's numbers")


def _calls(graph: fx.Graph) -> int:
    return sum(node.op == "call_function" for node in graph.nodes)


def _differentiable(
    region: Region, reference: fx.Graph, program: Any, sizes: Mapping[str, int] | None = None
) -> Any:
    """`program` itself if nothing can require grad, else one that attaches a recomputing backward.

    `sizes`: the numbers that `program` was made for, of the symbols in `reference`.
    """
    specs = [node.meta["val"] for node in reference.nodes if node.op == "placeholder"]
    if not any(spec.requires_grad for spec in specs):
        return program
    results = cast("tuple[fx.Node, ...]", next(iter(reversed(reference.nodes))).args[0])
    detached = tuple(number for number, node in enumerate(results) if is_detached(node))
    if not region.state.grad_enabled and not detached:
        return program
    flags = tuple(bool(node.meta["val"].requires_grad) for node in results)

    @functools.cache  # only backward needs it, and copying a graph takes longer than planning its memory
    def concrete() -> fx.Graph:
        return concrete_graph(reference, sizes) if sizes else reference

    def recompute(tensors: Any) -> Any:
        return run_graph(concrete(), tensors)

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
    stages = compiled.stages
    # An object's attributes are its own affair: copies of them would go stale.
    updated = functools.WRAPPER_UPDATES if isinstance(model, FunctionType) else ()
    functools.update_wrapper(compiled, model, updated=updated)
    compiled.stages, compiled.entries = stages, ()
    # In a class it binds as what it replaces does: functions do, partials and builtins do not.
    compiled.binds = hasattr(type(model), "__get__") and not isinstance(model, MethodType)
    return compiled


def stats() -> dict[str, float]:
    """Counters since start or `reset()`; see `lampwork.counters.Counters` for what each counts."""
    return counters.snapshot(runtime.stats())


def reset() -> None:
    """Set all counters to zero."""
    counters.reset(runtime.stats())
