"""Calls: what is inlined, what runs natively, what breaks."""

from __future__ import annotations

import functools
import operator
import types
import weakref
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture import symbolic, torch_calls, vmap
from lampwork.capture.attributes import MISSING, load_attr, lookup_type
from lampwork.capture.breaks import Break
from lampwork.capture.builtins_table import (
    ANSWERS,
    BREAKING,
    CALLBACK_CLASSES,
    NATIVE_CLASSES,
    NATIVE_PYTHON_MODULES,
    OVERRIDES,
    PURE,
    REPR_GUARDS,
    SINGLE_DISPATCH,
    TAKES_FUNCTION,
    WALKING,
)
from lampwork.capture.guards import mapping_behind
from lampwork.capture.methods import call_method
from lampwork.capture.modules import call_module
from lampwork.capture.outside import check_readable
from lampwork.capture.protocols import get_item, native_iterable
from lampwork.capture.region import Known
from lampwork.capture.values import Callback, Lazy, is_constant

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
_GETTERS = frozenset({operator.itemgetter, operator.attrgetter, operator.methodcaller})
_CACHED = type(functools.lru_cache(lambda: None))
# What users call of Lampwork itself: it changes options, stances, counters and marks, or compiles.
_OWN_DOORS = frozenset(
    {
        "lampwork.api",
        "lampwork.backends.registry",
        "lampwork.capture.dynamic",
        "lampwork.config",
        "lampwork.explain.explain",
        "lampwork.marks",
        "lampwork.stance",
    }
)


def call(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """function(*args, **kwargs) in the region.

    Raises:
        Break: the call cannot be part of the region.
    """
    kind = type(function)
    if kind is types.FunctionType:
        return _call_python(interp, function, args, kwargs)
    if kind is types.MethodType:
        return call(interp, function.__func__, [function.__self__, *args], kwargs)
    if issubclass(kind, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return _call_builtin(interp, function, args, kwargs)
    if issubclass(kind, torch.nn.Module) and "_lampwork_original" in vars(function):
        # A compiled module inside a compiled function: one region for both.
        original = vars(function)["_lampwork_original"]
        return call(interp, interp.outside.known(original, describe(original)), args, kwargs)
    if issubclass(kind, torch.nn.Module) and "_torchdynamo_orig_callable" in vars(function):
        # A module under torch.compile: likewise.
        original = vars(function)["_modules"]["_orig_mod"]
        return call(interp, interp.outside.known(original, describe(original)), args, kwargs)
    if issubclass(kind, torch.nn.Module) and lookup_type(kind, "__call__")[1] is torch.nn.Module:
        return call_module(interp, function, args, kwargs)
    if isinstance(function, type):
        return construct(interp, function, args, kwargs)
    if kind is Lazy:
        return call(interp, interp.force(function), args, kwargs)
    if isinstance(function, _DESCRIPTORS):
        return _call_descriptor(interp, function, args, kwargs)
    if kind is functools.partial:
        if interp.outside.entry(function) is None:
            return call(interp, function.func, [*function.args, *args], {**function.keywords, **kwargs})
        target, first, named = (load_attr(interp, function, name) for name in ("func", "args", "keywords"))
        return call(interp, target, [*first, *args], {**named, **kwargs})
    if kind is _CACHED:
        return _call_cached(interp, function, args, kwargs)
    if kind is Callback:
        return call(interp, function.function, args, kwargs)
    if kind in _GETTERS:
        return _call_getter(interp, function, args)
    if kind is weakref.ref:
        return interp.outside.known(function(), "weak reference")
    if torch_calls.is_operator(function):
        return torch_calls.call_native(interp, function, args, kwargs)
    found, _ = lookup_type(kind, "__call__")
    if isinstance(found, types.FunctionType):
        return call(interp, found, [function, *args], kwargs)
    override = _table(OVERRIDES, function)
    if override is not None:
        return override(interp, args, kwargs)
    if found is MISSING:
        raise TypeError(f"{kind.__name__!r} object is not callable")
    if kind.__module__ == "lampwork._C" and hasattr(function, "__wrapped__"):
        # A compiled function inside a compiled function: one region for both.
        return call(interp, interp.outside.known(function.__wrapped__, describe(function)), args, kwargs)
    if _table(PURE, function) is not None:
        return run_pure(interp, function, args, kwargs)
    raise Break("LW103", describe(function))


def _call_cached(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function under functools.lru_cache. By its own word it does not matter when or how often it runs, so on
    constants and known objects it is simply called; on others what it wraps is inlined."""
    values = [interp.force(a) for a in args]
    named = {name: interp.force(a) for name, a in kwargs.items()}
    for value in (*values, *named.values()):
        entry = interp.outside.entry(value)
        known = entry is not None and entry.known and not isinstance(value, torch.Tensor)
        if not is_constant(value) and not known:
            wrapped = interp.outside.known(function.__wrapped__, function.__name__)
            return call(interp, wrapped, values, named)
    return interp.outside.known(torch_calls.run_unrecorded(function, values, named), function.__name__)


def _call_getter(interp: Interpreter, getter: Any, args: Args) -> Any:
    """operator.itemgetter, attrgetter and methodcaller objects."""
    _, given = getter.__reduce__()[:2]
    value = interp.force(args[0])
    if type(getter) is operator.methodcaller:
        return call(interp, load_attr(interp, value, given[0]), list(given[1:]), {})
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


def _call_python(interp: Interpreter, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
    override = OVERRIDES.get(function)
    if override is not None:
        return override(interp, args, kwargs)
    if function in BREAKING:
        raise Break(BREAKING[function], describe(function))
    if function.__module__ in _OWN_DOORS:
        raise Break("LW103", describe(function))
    if function.__dict__:
        marked = torch_calls.marked(interp, function, args, kwargs)
        if marked is not torch_calls.UNMARKED:
            return marked
    if vmap.is_vmapped(function):
        return vmap.call_vmapped(interp, function, args, kwargs)
    torch_calls.check_transform(function)
    module = function.__module__ or ""
    if (module, function.__name__) in ANSWERS:
        return ANSWERS[module, function.__name__]
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
    elif module in NATIVE_PYTHON_MODULES or (
        module.startswith("lampwork.") and args and type(args[0]).__module__ == module
    ):
        if module in ("inspect", "typing"):
            # They look at functions, and never call them.
            return function(
                *[interp.force(a) for a in args], **{k: interp.force(v) for k, v in kwargs.items()}
            )
        return run_pure(interp, function, args, kwargs)
    elif module.partition(".")[0] in ("numpy", "scipy", "PIL", "pandas"):
        raise Break("LW103", describe(function))
    elif module.partition(".")[0] in ("logging", "threading", "subprocess", "socket", "random", "tempfile"):
        raise Break("LW104", describe(function))
    return interp.call_python(function, args, kwargs)


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
    chosen = function.dispatch(interp.outside.python_type(value))
    return interp.outside.known(chosen, chosen.__qualname__)


def _native_python(interp: Interpreter, function: types.FunctionType, args: Args, kwargs: Kwargs) -> Any:
    if args and isinstance(args[0], torch_calls.CONTEXTS) and function.__name__ in ("__enter__", "__exit__"):
        return torch_calls.enter_or_leave(interp, function.__name__, args)
    value = torch_calls.call_native(interp, function, args, kwargs)
    if isinstance(value, torch_calls.CONTEXTS):
        interp.contexts.adopt(value)
    return value


def _call_builtin(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    owner = getattr(function, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        override = OVERRIDES.get(function)
        if override is not None:
            return override(interp, args, kwargs)
        if function in PURE:
            return run_pure(interp, function, args, kwargs)
        if function in BREAKING:
            raise Break(BREAKING[function], describe(function))
    elif isinstance(owner, type) and function in PURE:
        return run_pure(interp, function, args, kwargs)
    if torch_calls.is_torch_builtin(function):
        torch_calls.check_builtin(function)
        return torch_calls.call_native(interp, function, args, kwargs)
    if owner is None or isinstance(owner, types.ModuleType):
        raise Break("LW103", describe(function))
    if (
        isinstance(owner, type)
        and type(function) is types.MethodWrapperType
        and function.__name__ == "__call__"
    ):
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
    bound = types.MethodType(function, owner)
    return call_method(interp, owner, function.__name__, bound, args[1:], kwargs)


def run_pure(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """Run a native function that has no effects; functions among its arguments come back into the interpreter."""
    interp.recorder.location = interp.user_location()
    place = TAKES_FUNCTION.get(function, (-1, ""))
    walks = function in CALLBACK_CLASSES or function in WALKING
    values = [native_argument(interp, a, walks, i == place[0]) for i, a in enumerate(args)]
    if not kwargs:
        return symbolic.operate_native(function, values)
    named = {name: native_argument(interp, a, walks, name == place[1]) for name, a in kwargs.items()}
    return function(*values, **named)


def native_argument(interp: Interpreter, value: Any, walks: bool, is_function: bool) -> Any:
    """An argument as native code may have it: forced; what it calls as a callback; what it walks over, if its class is
    Python, as an iterator that comes back into the interpreter."""
    value = interp.force(value)
    if (is_function and value is not None) or isinstance(value, (types.FunctionType, types.MethodType)):
        return Callback(interp, value)
    return native_iterable(interp, value) if walks else value


def construct(interp: Interpreter, cls: Any, args: Args, kwargs: Kwargs) -> Any:
    """cls(*args, **kwargs)."""
    override = OVERRIDES.get(cls)
    if override is not None:
        return override(interp, args, kwargs)
    if cls.__module__ in _OWN_DOORS:
        raise Break("LW103", describe(cls))
    if cls in CALLBACK_CLASSES:
        return run_pure(interp, cls, args, kwargs)
    if cls in NATIVE_CLASSES:
        return cls(*[interp.force(a) for a in args], **{k: interp.force(v) for k, v in kwargs.items()})
    if issubclass(cls, torch_calls.CONTEXTS):
        return torch_calls.make_context(interp, cls, args, kwargs)
    meta_call, _ = lookup_type(type(cls), "__call__")
    if isinstance(meta_call, types.FunctionType):
        if type(cls).__module__ == "enum":
            return cls(*[interp.force(a) for a in args], **{k: interp.force(v) for k, v in kwargs.items()})
        return call(interp, meta_call, [cls, *args], kwargs)
    return make_instance(interp, cls, args, kwargs)


def make_instance(interp: Interpreter, cls: Any, args: Args, kwargs: Kwargs) -> Any:
    """type.__call__(cls, *args, **kwargs): `__new__`, then `__init__`."""
    if issubclass(cls, torch.nn.Module) and cls in (torch.nn.ModuleList, torch.nn.Sequential):
        # A slice of a container of modules: a new container that nothing outside sees.
        return cls(*[native_argument(interp, a, True, False) for a in args])
    if cls is torch.nn.Parameter and not torch.is_grad_enabled():
        return torch_calls.make_parameter(interp, args, kwargs)
    if issubclass(cls, torch.Tensor):
        raise Break("LW107", cls.__name__)
    check_readable(cls, "what is made")
    if issubclass(cls, type):
        raise Break("LW110", describe(cls))
    new, _ = lookup_type(cls, "__new__")
    new = new.__func__ if isinstance(new, staticmethod) else new
    if isinstance(new, types.FunctionType):
        value = interp.call(new, [cls, *args], kwargs)
    elif issubclass(cls, BaseException) or issubclass(cls, tuple):
        value = new(cls, *[interp.force(a) for a in args], **kwargs)
    elif _is_plain_new(cls):
        value = cls.__new__(cls)
    else:
        raise Break("LW103", describe(cls))
    if not isinstance(value, cls):
        return value
    init, owner = lookup_type(cls, "__init__")
    if isinstance(init, types.FunctionType):
        call(interp, init, [value, *args], kwargs)
    elif owner is not object:
        call_method(interp, value, "__init__", types.MethodType(init, value), args, kwargs)
    elif (args or kwargs) and not isinstance(new, types.FunctionType):
        raise TypeError(f"{cls.__name__}() takes no arguments")
    return value


def _is_plain_new(cls: type) -> bool:
    """Whether the native `__new__` of a class only allocates."""
    for base in cls.__mro__:
        if "__new__" in base.__dict__:
            return base in (object, dict, list, set, super) or base.__module__ in ("collections", "typing")
    return False


def load_method(interp: Interpreter, obj: Any, name: str) -> Any:
    """obj.name, to be called."""
    return load_attr(interp, obj, name)
