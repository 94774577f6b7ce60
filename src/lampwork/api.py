"""`lampwork.compile`: its keywords checked, and what the user gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast, overload

from torch import Tensor, fx, nn
from torch.optim import Optimizer

from lampwork import config as config_module
from lampwork import counters, runtime
from lampwork.backends.native.compile import NativeBackend
from lampwork.backends.observer import Observer
from lampwork.backends.protocol import Backend, prepare
from lampwork.backends.registry import resolve_backends
from lampwork.capture.model.region import Region
from lampwork.capture.model.values import StandIn
from lampwork.checks import nearest
from lampwork.compiled.function import Function
from lampwork.compiled.live_functions import alive
from lampwork.compiled.module import CompiledModule
from lampwork.compiled.overview import Overview
from lampwork.compiled.pipeline import build_entry
from lampwork.compiled.saving import Saving
from lampwork.config import ISA_TOLD, Config
from lampwork.errors import OptionError
from lampwork.optimizers.instead import instead
from lampwork.optimizers.steps import compile_step
from lampwork.records import record
from lampwork.standard import functools

F = TypeVar("F", bound=Callable[..., Any])
TorchBackend = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Any]]
BackendChoice = str | Backend | type[Backend] | TorchBackend


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: BackendChoice | Sequence[BackendChoice] | None = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: None = None,
) -> F: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: BackendChoice | Sequence[BackendChoice] | None = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: None = None,
) -> Callable[[F], F]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: BackendChoice | Sequence[BackendChoice] | None = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: None = None,
    **unknown: Any,
) -> Any:
    """Make `model`, a function or an `nn.Module`, run faster with the same answers.

    Compilation happens later, on the first call with each new kind of arguments. Also works as a decorator, with or
    without arguments. The keywords are those of `torch.compile`, with its meaning.

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
            and the rest runs in eager PyTorch. None is "native".
        mode: "default": fast code by a model of the machine. "max-autotune": by measurement on the first call, with
            the winners kept on disk. "reduce-overhead": results in memory that is used again, so that a call overwrites
            what the one before returned. See the option `mode`.
        options: a mapping from fields of `lampwork.config.Config` to values.
        name: what logs, records, dumps and stages call the compiled function; by default its own name.
        disable: return `model` unchanged.
        recompile_limit: how many versions there may be; the same as the option `recompile_limit`. What needs another
            one runs eager, or raises RecompileError with `fullgraph=True`.
        isolate_recompiles: accepted for torch's sake. What `compile` returns always has versions, and a limit, of its
            own, whatever else was compiled from the same function.
        shapes_spec: refused if it is not None: use `lampwork.mark_dynamic` and `lampwork.mark_static`.

    Raises:
        OptionError: an unknown keyword, option, mode or backend, or a value that one does not take, or a model that
            cannot be called.
    """
    given: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
        "name": name,
        "disable": disable,
        "recompile_limit": recompile_limit,
        "isolate_recompiles": isolate_recompiles,
        "shapes_spec": shapes_spec,
    }
    checked = check_keywords(**given, **unknown)
    # A mapping may change.
    given |= {"options": dict(options or {})}
    defaults = inspect.signature(check_keywords).parameters
    saved = {key: value for key, value in given.items() if value not in (defaults[key].default, {})}
    if model is None:
        # Backends that were named are looked up once.
        return functools.partial(_compile, keywords=checked, saved=saved, disable=disable)
    return _compile(model, checked, saved, disable=disable)


def _compile(model: Any, keywords: Keywords, saved: Mapping[str, Any], *, disable: bool) -> Any:
    """`compile` with its keywords checked; `saved` are those that were given, for pickles."""
    if isinstance(model, (staticmethod, classmethod)):
        # Under a decorator of the class body: what they wrap is compiled.
        return type(model)(_compile(model.__func__, keywords, saved, disable=disable))
    check_model(model, "compile")
    if disable:
        return model
    model = original_of(model)
    first = keywords.backends[0]
    if isinstance(first, NativeBackend):
        step = compile_step(
            model, first.target(keywords.config), keywords.config, fullgraph=keywords.fullgraph
        )
        if step is not None:
            return step
    if isinstance(model, MethodType) and isinstance(model.__self__, Optimizer):
        # Schedulers take the function out of an optimizer's step.
        return MethodType(_dress(model.__func__, keywords, saved), model.__self__)
    return _dress(model, keywords, saved)


def compile_again(model: Any, keywords: dict[str, Any]) -> Any:
    """What a pickle of a compiled callable calls, by this name: `compile` with the keywords of then."""
    return compile(model, **keywords)


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of the call that `inputs` stands for: a tuple or list of arguments, a mapping of
    keyword arguments, or a single argument."""
    if isinstance(inputs, Mapping):
        return (), {str(key): value for key, value in cast("Mapping[Any, Any]", inputs).items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(cast("Sequence[Any]", inputs)), {}
    return (inputs,), {}


def check_model(model: Any, who: str) -> None:
    """Raise OptionError unless the function called `who` can compile `model`."""
    if not callable(model):
        raise OptionError(
            f"{who}() takes a function or a module, got {type(model).__name__}",
            fix="pass the model itself, not its result",
        )
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise OptionError(
            f"{who}() takes a module, got the class {model.__name__}", fix=f"{who} an instance of it"
        )


@record
class Keywords:
    """What `compile` was called with, checked; `config` is complete."""

    fullgraph: bool
    dynamic: bool | None
    backends: tuple[Backend, ...]
    config: Config
    name: str = ""


def check_keywords(
    *,
    fullgraph: Any = False,
    dynamic: Any = None,
    backend: Any = "native",
    mode: Any = None,
    options: Any = None,
    name: Any = None,
    disable: Any = False,
    recompile_limit: Any = None,
    isolate_recompiles: Any = False,
    shapes_spec: Any = None,
    **unknown: Any,
) -> Keywords:
    """The keywords of `compile` with names resolved.

    Raises:
        OptionError: an unknown keyword, option, mode or backend, or a value that one does not take.
    """
    for keyword in unknown:
        names = [each for each in inspect.signature(check_keywords).parameters if each != "unknown"]
        option = keyword in config_module.option_names()
        raise OptionError(
            f"compile() has no keyword {keyword!r}",
            fix=f"it is an option: pass options={{{keyword!r}: {unknown[keyword]!r}}}"
            if option
            else nearest(keyword, names, "the keywords are"),
        )
    flags = {"fullgraph": fullgraph, "disable": disable, "isolate_recompiles": isolate_recompiles}
    for flag, value in flags.items():
        if type(value) is not bool:
            raise OptionError(
                f"{flag} takes True or False, got {value!r}", fix=f"pass {flag}=True or leave it out"
            )
    if name is not None and (type(name) is not str or not name):
        raise OptionError(f"name takes a text, got {name!r}", fix="leave it out for the function's own name")
    if shapes_spec is not None:
        raise OptionError(
            "shapes_spec is not supported: which sizes are open is said of the tensors themselves",
            fix="call lampwork.mark_dynamic(tensor, dim) or lampwork.mark_static(tensor, dim), or pass dynamic=True",
        )
    if dynamic is not None and type(dynamic) is not bool:
        raise OptionError(f"dynamic takes True, False or None, got {dynamic!r}", fix="leave it out for None")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(
            f"options takes a mapping, got {type(options).__name__}", fix='pass options={"name": value}'
        )
    given = cast("dict[str, Any]", dict(options or {}))
    for keyword, value in (("mode", mode), ("recompile_limit", recompile_limit)):
        if value is None:
            continue
        if given.get(keyword, value) != value:
            raise OptionError(
                f"{keyword}={value!r}, but option {keyword!r} is {given[keyword]!r}",
                fix="pass one of the two",
            )
        given[keyword] = value
    backends = resolve_backends("native" if backend is None else backend)
    config = config_module.with_options(config_module.current(), given)
    _require_use(given, config)
    return Keywords(fullgraph, dynamic, backends, config, name or "")


# What this CPU has, the backend knows that makes code for it.
ISA_TOLD.tell(lambda name: NativeBackend().target(Config(isa=name)))


def _require_use(given: Mapping[str, Any], config: Config) -> None:
    """Raise OptionError for an option that means nothing in this mode."""
    if "tuning_seconds" in given and not config.tunes:
        raise OptionError(
            f"option 'tuning_seconds' means nothing with mode={config.mode!r}, which measures nothing",
            fix='pass mode="max-autotune", or leave it out',
        )


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
    owner = _owner(inner.__func__ if isinstance(inner, MethodType) else inner)
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

    function = Function.of(
        model,
        keywords.config,
        build,
        fullgraph=keywords.fullgraph,
        dynamic=keywords.dynamic,
        quiet=quiet,
        label=keywords.name,
        stand_in=_stand_in(keywords),
        is_native=isinstance(keywords.backends[0], NativeBackend),
    )
    function.backends = keywords.backends
    function.prepare = functools.partial(prepare, keywords.backends)
    return function


def _stand_in(keywords: Keywords) -> StandIn | None:
    """What stands in for functions of torch that a compiled function calls at a graph break."""
    first = keywords.backends[0]
    if not isinstance(first, NativeBackend):
        return None
    return functools.partial(instead, target=first.target(keywords.config))


def _dress(model: Any, keywords: Keywords, saved: Mapping[str, Any]) -> Any:
    """What the user gets: the C++ callable with a function's attributes, or a module around it."""
    function = make_function(model, keywords)
    compiled = function.compiled
    compiled._repr_html_ = Overview(function)._repr_html_
    make = functools.partial(_dress, keywords=keywords, saved=saved)
    saving = Saving(model, compiled, make, compile_again, saved)
    saving.install()
    if isinstance(model, nn.Module):
        return CompiledModule(model, compiled, saving)
    stages, entries = compiled.stages, compiled.entries
    # An object's attributes are its own affair: copies of them would go stale.
    updated = functools.WRAPPER_UPDATES if isinstance(model, FunctionType) else ()
    functools.update_wrapper(compiled, model, updated=updated)
    compiled.stages, compiled.entries = stages, entries
    # In a class it binds as what it replaces does: functions do, partials and builtins do not.
    compiled.binds = hasattr(type(model), "__get__") and not isinstance(model, MethodType)
    return compiled


def stats() -> dict[str, float]:
    """The counters since the process started, `reset()` or `reset_stats()`; `lampwork.counters.Counters` explains
    each."""
    return counters.snapshot(runtime.stats())


def reset_stats() -> None:
    """Set all counters to zero; what is compiled stays."""
    counters.reset(runtime.stats())


def reset(compiled: Any = None) -> None:
    """Forget what was compiled: the next call compiles anew, as the first one did.

    Versions, records, refusals and sizes seen are dropped, also those of resume functions and callees behind graph
    breaks. Calls that have begun end with the version that they have; a function that is being compiled just now is
    reset when that is done. Kernels that other functions use as well, what was measured, and what is registered or set
    stays.

    Args:
        compiled: what `compile` returned. Left out: all compiled functions of the process, and the counters too.

    Raises:
        OptionError: `compiled` was not made by `compile`.
    """
    if compiled is None:
        for one in alive():
            one.reset()
        reset_stats()
        return
    try:
        function = function_of(compiled)
    except TypeError as error:
        raise OptionError(
            f"reset() takes what lampwork.compile returned, got {type(compiled).__name__}",
            fix="pass the compiled function or module, or nothing to reset all of them",
        ) from error
    function.reset()
