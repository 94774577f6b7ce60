"""`lampwork.compile`, and the pipeline of a compilation, top to bottom, in `build_entry`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast, overload

from torch import Tensor, fx, nn

from lampwork import config as config_module
from lampwork import counters, runtime
from lampwork.backends.eager import EagerBackend
from lampwork.backends.observer import Observer
from lampwork.backends.protocol import Backend
from lampwork.backends.registry import resolve_backends
from lampwork.capture.model.region import Region
from lampwork.compiled.function import Function
from lampwork.compiled.module import CompiledModule
from lampwork.config import Config, using_config
from lampwork.errors import OptionError
from lampwork.graph.concrete import concrete_graph, known_sizes, symbol_names
from lampwork.graph.copying import copy_graph
from lampwork.graph.symbols import bits_of_float
from lampwork.graph.verify import verify
from lampwork.partitioning import Part, compile_for_sizes, compile_parts, partition
from lampwork.partitioning.foreign import pass_context
from lampwork.records import record
from lampwork.rewriting.apply.aliasing import is_detached
from lampwork.runtime import Numbers, make_entry
from lampwork.runtime.autograd import Differentiable, DifferentiableCall, without_gradients
from lampwork.standard import functools, struct
from lampwork.transforms.pipeline import run_passes

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

    Compilation happens later, on the first call with each new kind of arguments. Also works as a decorator, with or
    without arguments. The keywords are those of `torch.compile`.

    The result has two more attributes: `entries`, the versions compiled so far, each with its guards, regions and
    stages; and `stages`, the stages of the version compiled last.

    Args:
        model: a module, or anything that can be called: a Python function, a method, a static or class method, a
            partial, an object with `__call__`, a function of torch. A compiled module stays a module: parameters,
            `state_dict()`, `train()`, `to()`, hooks and attributes are the original's. A callable that `compile`
            returned is compiled again, from its original.
        fullgraph: raise GraphBreakError if the function cannot be captured as one graph.
        dynamic: None: compile for the sizes and ints of the first call; when a later call brings different ones,
            compile once more with those left open. True: leave them open from the first call on. False: never leave
            them open.
        backend: a name from `lampwork.list_backends()`, a Backend object or class, or a function as for
            `torch.compile`: `fn(gm, example_inputs)` receives an fx.GraphModule of ATen operators and returns the
            callable that replaces it. Or a list of these: each operator goes to the first backend that supports it,
            and the rest runs in eager PyTorch.
        mode: a mode of `torch.compile`; all modes generate the same code today.
        options: a mapping from fields of `lampwork.config.Config` to values.
        disable: return `model` unchanged.

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


@record
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

    def build(region: Region, function: Function, observer: Observer) -> Any:
        return build_entry(region, function, observer, keywords.backends)

    return Function.of(
        model,
        keywords.config,
        build,
        fullgraph=keywords.fullgraph,
        dynamic=keywords.dynamic,
        quiet=quiet,
    )


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

    differentiable = _differentiable(region, graph, reference)
    ctx = pass_context(function.config, backends)
    records = run_passes(graph, function.config, ctx=ctx)
    for fault in ctx.faults:
        function.note_fault(fault, "the graph as it was before")
    observer.transformed(graph, records, ctx.backend_passes)

    parts = partition(graph, backends, function.note_fault)
    observer.partitioned(parts)
    if region.symbols and symbol_names(graph) | symbol_names(reference):
        made = _for_numbers(region, reference, differentiable, parts, observer, function)
        # What compiling asked of the sizes has become conditions; whatever asks later only prints.
        region.conditions = tuple(region.conditions)
    else:
        compiled = compile_parts(parts, region, observer, function.note_fault)
        made = Made(_with_gradients(differentiable, reference, compiled))
    observer.finished()
    return make_entry(
        region,
        made.program,
        specialize=made.specialize,
        numbers=made.numbers,
        on_failure=function.on_failure,
        counted=function.root,
    )


@record
class Made:
    """What runs a region's graph: one program, or what makes one for each tuple of sizes."""

    program: Any = None
    specialize: Callable[[tuple[int, ...]], Any] | None = None
    numbers: Numbers = field(default_factory=Numbers)


def _for_numbers(
    region: Region,
    reference: fx.Graph,
    differentiable: Differentiable | None,
    parts: Sequence[Part],
    observer: Observer,
    function: Function,
) -> Made:
    """What runs a graph with symbols: a program for each tuple of sizes, which takes other numbers with the call."""
    compiled = compile_for_sizes(parts, region, observer, function.note_fault)
    in_keys = {name: number for name, number in region.derived.items() if name in compiled.keys}
    wanted = compiled.keys.union(*(number.symbols() for number in in_keys.values()))
    if not compiled.scalars:
        wanted |= symbol_names(reference)  # backward computes the graph as recorded
    keys = tuple(i for i, symbol in enumerate(region.symbols) if symbol.name in wanted)
    names = [region.symbols[i].name for i in keys]
    taken = frozenset[str]().union(*(index.symbols() for index in compiled.scalars))
    computed = {name: number for name, number in region.derived.items() if name in taken}

    def make(values: tuple[int, ...]) -> Any:
        numbers = dict(zip(names, values, strict=True))
        try:
            floats = {name: bits_of_float(number.evaluate(numbers)) for name, number in in_keys.items()}
        except (ArithmeticError, ValueError, TypeError, struct.error):
            return _leave_to_eager  # the program's own arithmetic fails for these numbers
        with using_config(function.config):
            program = compiled.make({**numbers, **floats})
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
    made = Differentiable(
        reference, len(region.inputs), region.mutations, region.pieces, region.fresh_versions
    )
    if made.needed:
        by_name = {node.name: node for node in graph.nodes}
        output = next(iter(reversed(graph.nodes)))
        results = cast("tuple[fx.Node, ...]", output.args[0])
        output.args = ((*results, *(by_name[name] for name in made.needed)),)
    return made


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
        return differentiable.call(program, lambda: known_sizes(reference, sizes) if sizes else reference)
    if not any(node.meta["val"].requires_grad for node in _inputs(reference)):
        return program
    results = cast("tuple[fx.Node, ...]", next(iter(reversed(reference.nodes))).args[0])
    detached = tuple(number for number, node in enumerate(results) if is_detached(node))
    return without_gradients(program, detached) if detached else program


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
    """The counters since the process started or `reset()` was called; `lampwork.counters.Counters` explains each."""
    return counters.snapshot(runtime.stats())


def reset() -> None:
    """Set all counters to zero."""
    counters.reset(runtime.stats())
