"""Calls: what is inlined, what runs natively, what breaks."""

from __future__ import annotations

import collections
import contextlib
import inspect
import types
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork import pristine
from lampwork.capture.calls import accelerators, collectives, flex, natives, ours, torch_calls, vmap
from lampwork.capture.calls.builtins_table import (
    ANSWERS,
    BREAKING,
    CALLBACK_CLASSES,
    NATIVE_CLASSES,
    OVERRIDES,
    PURE,
    REPR_GUARDS,
    SINGLE_DISPATCH,
    TAKES_FUNCTION,
    WALKING,
)
from lampwork.capture.calls.methods import call_method, called_back
from lampwork.capture.calls.modules import call_module, calls_as_modules_do
from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Attr, DictItem, InstanceDict, Known, Result, Source
from lampwork.capture.model.values import PLAIN, Appended, Callback, Lazy, is_constant
from lampwork.capture.semantics import dtensors, symbolic
from lampwork.capture.semantics.attribute_writes import store_attr
from lampwork.capture.semantics.attributes import MISSING, load_attr
from lampwork.capture.semantics.held_state import GETATTR, load_registered
from lampwork.capture.semantics.iteration import native_iterable
from lampwork.capture.semantics.mappings import mapping_or_pairs
from lampwork.capture.semantics.protocols import get_item
from lampwork.capture.state.asked import is_allowed
from lampwork.capture.state.enumerations import guard_enumeration
from lampwork.capture.state.guards import mapping_behind
from lampwork.capture.state.treatment import check_readable
from lampwork.standard import functools, operator

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Args = list[Any]
Kwargs = dict[str, Any]

_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)
_ALIAS: Any = type(typing.List[int])  # noqa: UP006  (the alias of a class in Python)
_CACHED = type(functools.lru_cache(lambda: None))
# Which argument of a class of dicts is a mapping, or an iterable of pairs.
_MERGING: dict[type, int] = {dict: 0, collections.OrderedDict: 0, collections.defaultdict: 1}


def call(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """function(*args, **kwargs) in the region, as `_OF_CLASS` or the first of `_OF_NATURE` that fits has it.

    Raises:
        Break: the call cannot be part of the region.
    """
    handler = _OF_CLASS.get(type(function))
    if handler is not None:
        return handler(interp, function, args, kwargs)
    for fits, handle in _OF_NATURE:
        if fits(interp, function):
            return handle(interp, function, args, kwargs)
    raise Break("LW103", describe(function))


def _call_bound(interp: Interpreter, method: Any, args: Args, kwargs: Kwargs) -> Any:
    function, receiver = method.__func__, method.__self__
    if (
        type(function) is types.FunctionType
        and function.__name__ == "forward"
        and _is_module(interp, receiver)
    ):
        before = interp.whereabouts.enter(receiver)
        try:
            return call(interp, function, [receiver, *args], kwargs)
        finally:
            interp.whereabouts.within = before
    return call(interp, function, [receiver, *args], kwargs)


def _call_lazy(interp: Interpreter, lazy: Any, args: Args, kwargs: Kwargs) -> Any:
    return call(interp, interp.force(lazy), args, kwargs)


def _call_appended(interp: Interpreter, method: Any, args: Args, kwargs: Kwargs) -> Any:
    if len(args) != 1 or kwargs:
        return list.append(method.items[:0], *args, **kwargs)  # its error
    return interp.effects.append(method.items, args[0])


def _call_callback(interp: Interpreter, callback: Any, args: Args, kwargs: Kwargs) -> Any:
    return call(interp, callback.function, args, kwargs)


def _call_partial(interp: Interpreter, partial: Any, args: Args, kwargs: Kwargs) -> Any:
    if interp.environment.entry(partial) is None:
        return call(interp, partial.func, [*partial.args, *args], {**partial.keywords, **kwargs})
    target, first, named = (load_attr(interp, partial, name) for name in ("func", "args", "keywords"))
    return call(interp, target, [*first, *args], {**named, **kwargs})


def _call_compiled_module(interp: Interpreter, module: Any, args: Args, kwargs: Kwargs) -> Any:
    """A compiled module inside a compiled function: one region for both."""
    return call(interp, load_attr(interp, module, "_lampwork_original"), args, kwargs)


def _call_dynamo_module(interp: Interpreter, module: Any, args: Args, kwargs: Kwargs) -> Any:
    """A module under torch.compile: likewise."""
    original = vars(module)["_modules"]["_orig_mod"]
    held = interp.environment.held(module, original, _original_module, describe(original))
    return call(interp, held, args, kwargs)


def _call_python_method(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return call(interp, interp.lookup(type(function), "__call__")[0], [function, *args], kwargs)


def _call_override(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    return OVERRIDES[function](interp, args, kwargs)


def _call_uncallable(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    raise TypeError(f"{type(function).__name__!r} object is not callable")


def _call_compiled_function(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A compiled function inside a compiled function: one region for both."""
    return call(interp, _wrapped(interp, function), args, kwargs)


def _call_alias(interp: Interpreter, alias: Any, args: Args, kwargs: Kwargs) -> Any:
    """Stack[int](...): an instance of the class, which notes the alias if it can."""
    made = call(interp, alias.__origin__, args, kwargs)
    with contextlib.suppress(AttributeError):
        store_attr(interp, made, "__orig_class__", alias)
    return made


def _wrapped(interp: Interpreter, function: Any) -> Any:
    """What a native callable was made of."""
    return interp.environment.held(
        function, function.__wrapped__, lambda source: Attr(source, "__wrapped__"), describe(function)
    )


def _original_module(source: Source) -> Source:
    """Where torch.compile's modules keep the one that they compile."""
    return DictItem(DictItem(InstanceDict(source), "_modules"), "_orig_mod")


def _call_cached(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function under functools.lru_cache. One of a library is asked again on every call, if its arguments are
    constants or known objects; on others what it wraps is inlined.

    Raises:
        Break: LW103 for one of the program's own: when it runs, and what it counts, is part of what the program does.
    """
    wrapped_code = getattr(function.__wrapped__, "__code__", None)
    if wrapped_code is not None and not natives.is_of_library(wrapped_code):
        raise Break("LW103", f"{describe(function)}, which keeps a cache,")
    interp.environment.register(function)
    values = [interp.force(a) for a in args]
    named = {name: interp.force(a) for name, a in kwargs.items()}
    for value in (*values, *named.values()):
        entry = interp.environment.entry(value)
        known = entry is not None and entry.known and not isinstance(value, torch.Tensor)
        if not is_constant(value) and not known:
            return call(interp, _wrapped(interp, function), values, named)
    asked = functools.partial(function, *values, **named)
    result = torch_calls.run_unrecorded(asked, [], {})
    return interp.environment.read(result, Result(Known(asked, function.__name__)), f"{function.__name__}()")


def _dereference(interp: Interpreter, reference: Any, args: Args, kwargs: Kwargs) -> Any:
    """reference(): what it refers to may die between calls."""
    entry = interp.environment.entry(reference)
    if entry is None:
        raise Break("LW103", "a weak reference that the region made")
    target = reference()
    if target is not None and not isinstance(target, torch.Tensor):
        # A version that knew the object would keep it alive; one that is given it does not.
        raise Break("LW103", f"{entry.name}(), a weak reference,")
    return interp.environment.read(target, Result(entry.source), f"{entry.name}()")


def _call_getter(interp: Interpreter, getter: Any, args: Args, kwargs: Kwargs) -> Any:
    """operator.itemgetter, attrgetter and methodcaller objects."""
    maker, given = getter.__reduce__()[:2]
    named: dict[str, Any] = {}
    if type(maker) is functools.partial:  # a methodcaller with keywords
        given, named = (*maker.args, *given), maker.keywords
    if interp.environment.entry(getter) is not None:
        # The getter is what it is, but what it was given may be changed in place.
        label = f"an argument of {type(getter).__name__}()"
        given = [interp.environment.known(value, label) for value in given]
        named = {name: interp.environment.known(value, label) for name, value in named.items()}
    value = interp.force(args[0])
    if type(getter) is operator.methodcaller:
        return call(interp, load_attr(interp, value, given[0]), list(given[1:]), named)
    if type(getter) is operator.itemgetter:
        found = [get_item(interp, value, key) for key in given]
    else:
        found = [
            functools.reduce(functools.partial(load_attr, interp), path.split("."), value) for path in given
        ]
    return found[0] if len(found) == 1 else tuple(found)


def _table(table: Any, key: Any) -> Any:
    """table.get(key) where the key may be unhashable."""
    try:
        return table.get(key)
    except TypeError:
        return None


def describe(function: Any) -> str:
    """A function as a user knows it."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None)
    return f"{module}.{name}()" if module and module != "builtins" else f"{name}()"


_EFFECTFUL = frozenset({"logging", "threading", "subprocess", "socket", "random", "tempfile"})


@functools.cache
def _signature(function: Any) -> inspect.Signature | None:
    """What a function with an override takes; None if it does not say."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None


# No keywords, and this many arguments, of builtins that do not say so.
_COUNTS = {getattr: (2, 3), next: (1, 2), iter: (1, 2)}


def _check_arguments(function: Any, args: Args, kwargs: Kwargs) -> None:
    """Hold a call of a function with an override to what the function itself takes.

    Raises:
        TypeError: it takes other arguments.
    """
    counts = _COUNTS.get(function)
    if counts is not None:
        if kwargs or not counts[0] <= len(args) <= counts[1]:
            raise TypeError(
                f"{describe(function)} takes {counts[0]} to {counts[1]} arguments and no keywords"
            )
        return
    signature = _signature(function)
    if signature is not None:
        signature.bind(*args, **kwargs)


def _call_python(interp: Interpreter, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
    if id(function) in interp.ordinary:
        return interp.call_python(function, args, kwargs)
    override = OVERRIDES.get(function)
    if override is not None:
        _check_arguments(function, args, kwargs)
        return override(interp, args, kwargs)
    if function is GETATTR and len(args) == 2 and not kwargs:
        return load_registered(interp, args[0], interp.force(args[1]))
    if function in BREAKING:
        raise Break(BREAKING[function], describe(function))
    if ours.is_for_eager(function, args):
        raise Break("LW103", describe(function))
    if function.__dict__:
        marked = torch_calls.marked(interp, function, args, kwargs)
        if marked is not torch_calls.UNMARKED:
            return marked
    if vmap.is_vmapped(function):
        return vmap.call_vmapped(interp, function, args, kwargs)
    if flex.is_flex_attention(function):
        return flex.call_flex(interp, args, kwargs)
    torch_calls.check_transform(function)
    module = function.__module__ or ""
    torch_calls.check_training(function, module, args)
    if (module, function.__name__) in ANSWERS:
        return ANSWERS[module, function.__name__]
    if dtensors.is_of_dtensors(function):
        return dtensors.call_distributed(interp, function, args, kwargs)
    if (handler := collectives.handler_of(function) or accelerators.handler_of(function)) is not None:
        return handler(interp, function, args, kwargs)
    if module == "torch._dynamo.mutation_guard" and "init" in function.__code__.co_freevars:
        # Once Dynamo was used in this process, nn.Module.__init__ is its wrapper, which also notes the instance in a
        # table of Dynamo's own. What the program sees is the constructor inside.
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index("init")]
        return call(interp, cell.cell_contents, args, kwargs)
    if function.__code__ in REPR_GUARDS:
        return _call_repr(interp, cast(Any, function).__wrapped__, args)
    if function.__code__ is SINGLE_DISPATCH and args:
        return call(interp, _dispatched(interp, function, interp.force(args[0])), args, kwargs)
    if module.startswith("torch"):
        if torch_calls.is_torch_module(module) and torch_calls.runs_native(function):
            return _native_python(interp, function, args, kwargs)
    elif module in natives.NATIVE_PYTHON_MODULES or ours.is_of_stand_in(function, args):
        values = [interp.force(a) for a in args]
        named = {k: interp.force(v) for k, v in kwargs.items()}
        for value in (*values, *named.values()):
            natives.guard_held(interp, value)
        if module in ("inspect", "typing"):
            # They look at functions, and never call them.
            for value in values:
                natives.guard_looked_at(interp, value)
            natives.guard_answers(interp, function, values)
            return function(*values, **named)
        for value in values:
            guard_enumeration(interp.environment, value)
        return run_pure(interp, function, args, kwargs)
    elif module.partition(".")[0] in ("numpy", "scipy", "PIL", "pandas"):
        raise Break("LW103", describe(function))
    elif module in torch_calls.RUN_AS_THEY_ARE or module.partition(".")[0] in _EFFECTFUL:
        raise Break("LW104", describe(function))
    if _is_ordinary(interp, function):
        interp.ordinary[id(function)] = function
    return interp.call_python(function, args, kwargs)


def _is_ordinary(interp: Interpreter, function: types.FunctionType) -> bool:
    """Whether all calls of an outside function are interpreted, since one was: what it is treated by does not hang on
    its arguments."""
    return not (
        function is GETATTR
        or function.__dict__
        or function.__code__ is SINGLE_DISPATCH
        or id(function) in interp.inside_functions
        or ours.is_ours(function.__module__)
        or torch_calls.is_named_as_step(function)
    )


def _call_repr(interp: Interpreter, function: types.FunctionType, args: Args) -> str:
    """A `__repr__` under a guard against objects that hold themselves, such as that of a dataclass."""
    for frame in interp.frames:
        if frame.function is function and frame.locals.get("self") is args[0]:
            return "..."
    return interp.call_python(function, args, {})


def _dispatched(interp: Interpreter, function: Any, value: Any) -> Any:
    """The function that a functools.singledispatch function chooses for a first argument."""
    registry = mapping_behind(function.registry)
    name = f"{function.__qualname__}.registry"
    interp.guards.version(registry, name)
    interp.guards.add(Known(registry, name), "keys", tuple(registry), slow=True)
    chosen = function.dispatch(interp.environment.python_type(value))
    return interp.environment.known(chosen, chosen.__qualname__)


def _native_python(interp: Interpreter, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
    if args and isinstance(args[0], torch_calls.CONTEXTS) and function.__name__ in ("__enter__", "__exit__"):
        return torch_calls.enter_or_leave(interp, function.__name__, args)
    natives.guard_native(interp, function)
    value = torch_calls.call_native(interp, function, args, kwargs)
    if isinstance(value, torch_calls.CONTEXTS):
        interp.contexts.adopt(value)
    return value


def _call_builtin(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    owner = getattr(function, "__self__", None)
    kind = type(owner)
    of_module, of_class = owner is None or issubclass(kind, types.ModuleType), issubclass(kind, type)
    if of_module:
        override = OVERRIDES.get(function)
        if override is not None:
            _check_arguments(function, args, kwargs)
            return override(interp, args, kwargs)
        if function in PURE:
            return run_pure(interp, function, args, kwargs)
        if function in BREAKING:
            raise Break(BREAKING[function], describe(function))
    elif of_class and function in PURE:
        return run_pure(interp, function, args, kwargs)
    if torch_calls.is_torch_builtin(function):
        torch_calls.check_builtin(function)
        return torch_calls.call_native(interp, function, args, kwargs)
    if is_allowed(function):
        return torch_calls.call_native(interp, function, args, kwargs)
    if of_module:
        raise Break("LW103", describe(function))
    if of_class and type(function) is types.MethodWrapperType and function.__name__ == "__call__":
        return make_instance(interp, owner, args, kwargs)  # super().__call__() in a metaclass
    return call_method(interp, owner, function.__name__, function, args, kwargs)


def _call_descriptor(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A native method called through its class: list.append(items, x), object.__setattr__(self, name, value)."""
    override = OVERRIDES.get(function)
    if override is not None:
        return override(interp, args, kwargs)
    if torch_calls.is_torch_builtin(function):
        return torch_calls.call_native(interp, function, args, kwargs)
    if function in PURE:
        return run_pure(interp, function, args, kwargs)
    if not args:
        raise TypeError(f"unbound method {function.__name__}() needs an argument")
    owner = interp.force(args[0])
    _check_receiver(interp, function, owner)
    bound = types.MethodType(function, owner)
    return call_method(interp, owner, function.__name__, bound, args[1:], kwargs)


def _check_receiver(interp: Interpreter, function: Any, owner: Any) -> None:
    """
    Raises:
        TypeError: a native method is not one of an object's class.
    """
    cls, kind = function.__objclass__, interp.environment.python_type(owner)
    if issubclass(kind, (cls, types.GeneratorType, Callback)) or isinstance(
        function, types.ClassMethodDescriptorType
    ):
        return
    name = f"descriptor {function.__name__!r}"
    if isinstance(function, types.WrapperDescriptorType):
        raise TypeError(f"{name} requires a {cls.__name__!r} object but received a {kind.__name__!r}")
    raise TypeError(f"{name} for {cls.__name__!r} objects doesn't apply to a {kind.__name__!r} object")


def run_pure(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a native function that has no effects; functions among its arguments come back into the interpreter."""
    place = TAKES_FUNCTION.get(function, (-1, ""))
    walks = function in CALLBACK_CLASSES or function in WALKING
    values = [native_argument(interp, a, walks, i == place[0]) for i, a in enumerate(args)]
    natives.guard_numbers(interp, values)
    if not kwargs:
        return symbolic.operate_native(function, values)
    named = {name: native_argument(interp, a, walks, name == place[1]) for name, a in kwargs.items()}
    return function(*values, **named)


def native_argument(interp: Interpreter, value: Any, walks: bool, is_function: bool) -> Any:
    """An argument as native code may have it: forced; what it calls as a callback; what it walks over, if its class is
    Python, as an iterator that comes back into the interpreter."""
    value = interp.force(value)
    if is_function or isinstance(value, (types.FunctionType, types.MethodType)):
        return called_back(interp, value)
    return native_iterable(interp, value) if walks else value


def construct(interp: Interpreter, cls: Any, args: Args, kwargs: Kwargs) -> Any:
    """cls(*args, **kwargs)."""
    override = OVERRIDES.get(cls)
    if override is not None:
        return override(interp, args, kwargs)
    if ours.is_made_by_eager(cls):
        raise Break("LW103", describe(cls))
    if issubclass(cls, (weakref.ref, weakref.finalize)):
        raise Break("LW121", describe(cls))
    if cls is collections.Counter and any(type(interp.force(a)) not in PLAIN for a in args):
        return make_instance(interp, cls, args, kwargs)  # It asks what kind of argument it is.
    if cls in _MERGING and len(args) > _MERGING[cls]:
        args = [interp.force(a) for a in args]
        place, ordered = _MERGING[cls], cls is collections.OrderedDict
        args[place] = mapping_or_pairs(interp, args[place], ordered)
    if dtensors.is_placement(cls):
        return cls(*[interp.force(a) for a in args], **{k: interp.force(v) for k, v in kwargs.items()})
    if cls in CALLBACK_CLASSES:
        return run_pure(interp, cls, args, kwargs)
    if cls in NATIVE_CLASSES:
        natives.guard_numbers(interp, map(interp.force, args))
        return cls(*[interp.force(a) for a in args], **{k: interp.force(v) for k, v in kwargs.items()})
    if issubclass(cls, torch_calls.CONTEXTS):
        return torch_calls.make_context(interp, cls, args, kwargs)
    meta_call, _ = interp.lookup(type(cls), "__call__")
    if isinstance(meta_call, types.FunctionType):
        if type(cls).__module__ == "enum":
            guard_enumeration(interp.environment, cls)
            return cls(*[interp.force(a) for a in args], **{k: interp.force(v) for k, v in kwargs.items()})
        return call(interp, meta_call, [cls, *args], kwargs)
    return make_instance(interp, cls, args, kwargs)


def make_instance(interp: Interpreter, cls: Any, args: Args, kwargs: Kwargs) -> Any:
    """type.__call__(cls, *args, **kwargs): `__new__`, then `__init__`."""
    if issubclass(cls, torch.nn.Module) and cls in (torch.nn.ModuleList, torch.nn.Sequential):
        # A slice of a container of modules: a new container that nothing outside sees.
        natives.guard_method(interp, cls, "__init__")
        made = cls(*[native_argument(interp, a, True, False) for a in args])
        interp.environment.births.add(made)
        return made
    if cls is torch.nn.Parameter and not pristine.is_grad_enabled():
        return torch_calls.make_parameter(interp, args, kwargs)
    if issubclass(cls, torch.Tensor):
        raise Break("LW107", cls.__name__)
    check_readable(cls, "what is made")
    if interp.lookup(cls, "__del__")[0] is not MISSING:
        raise Break("LW121", describe(cls))
    if issubclass(cls, type):
        raise Break("LW110", describe(cls))
    new, maker = interp.lookup(cls, "__new__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    if isinstance(new, types.FunctionType):
        value = interp.call(new, [cls, *args], kwargs)
    elif issubclass(cls, BaseException) or issubclass(cls, tuple):
        given = [interp.force(a) for a in args]
        if issubclass(cls, tuple):
            given = [native_iterable(interp, value) for value in given]
        value = new(cls, *given, **{name: interp.force(a) for name, a in kwargs.items()})
    elif _is_plain_new(cls):
        value = cls.__new__(cls)
    else:
        raise Break("LW103", describe(cls))
    interp.environment.births.add(value)
    if not isinstance(value, cls):
        return value
    init, owner = interp.lookup(cls, "__init__")
    if isinstance(init, types.FunctionType):
        call(interp, init, [value, *args], kwargs)
    elif owner is not object:
        call_method(interp, value, "__init__", types.MethodType(init, value), args, kwargs)
    elif (args or kwargs) and maker is object:
        raise TypeError(f"{cls.__name__}() takes no arguments")
    return value


def _is_plain_new(cls: type) -> bool:
    """Whether the native `__new__` of a class only allocates."""
    for base in cls.__mro__:
        if "__new__" in base.__dict__:
            return base in (object, dict, list, set, super) or base.__module__ in ("collections", "typing")
    return False


Handler = Callable[["Interpreter", Any, Args, Kwargs], Any]
Test = Callable[["Interpreter", Any], bool]


def _is_of(*kinds: type) -> Test:
    """By the class itself: what an object says of its class may be the program's code."""
    return lambda interp, function: issubclass(type(function), kinds)


_is_module = _is_of(torch.nn.Module)


def _is_module_with(name: str) -> Test:
    return lambda interp, function: _is_module(interp, function) and name in vars(function)


_OF_CLASS: dict[type, Handler] = {
    types.FunctionType: _call_python,
    types.MethodType: _call_bound,
    Lazy: _call_lazy,
    Appended: _call_appended,
    Callback: _call_callback,
    functools.partial: _call_partial,
    _CACHED: _call_cached,
    weakref.ref: _dereference,
    operator.itemgetter: _call_getter,
    operator.attrgetter: _call_getter,
    operator.methodcaller: _call_getter,
}
_OF_NATURE: tuple[tuple[Test, Handler], ...] = (
    (_is_of(types.BuiltinFunctionType, types.MethodWrapperType), _call_builtin),
    (_is_module_with("_lampwork_original"), _call_compiled_module),
    (_is_module_with("_torchdynamo_orig_callable"), _call_dynamo_module),
    (
        lambda interp, function: _is_module(interp, function) and calls_as_modules_do(interp, type(function)),
        call_module,
    ),
    (lambda interp, function: isinstance(function, type), construct),
    (lambda interp, function: isinstance(function, _DESCRIPTORS), _call_descriptor),
    (lambda interp, function: type(function) is _ALIAS and function._inst, _call_alias),
    (torch_calls.is_operator, torch_calls.call_operator),
    (
        lambda interp, function: isinstance(interp.lookup(type(function), "__call__")[0], types.FunctionType),
        _call_python_method,
    ),
    (lambda interp, function: _table(OVERRIDES, function) is not None, _call_override),
    (lambda interp, function: interp.lookup(type(function), "__call__")[0] is MISSING, _call_uncallable),
    (
        lambda interp, function: (
            type(function).__module__ == "lampwork._C" and hasattr(function, "__wrapped__")
        ),
        _call_compiled_function,
    ),
    (lambda interp, function: _table(PURE, function) is not None, run_pure),
)
"""What a call is that no class decides, first match first."""
