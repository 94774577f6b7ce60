"""Native methods of native objects: `items.append(x)`, `table.get(k)`, `object.__setattr__(o, name, value)`."""

from __future__ import annotations

import collections
import enum
import re
import threading
import types
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.region import Known, Result
from lampwork.capture.model.values import CONSTANTS, Callback
from lampwork.capture.semantics.attribute_writes import (
    GENERIC,
    delete_attr,
    delete_instance_attr,
    store_attr,
    store_instance_attr,
)
from lampwork.capture.semantics.attributes import MISSING, load_attr, load_instance_attr
from lampwork.capture.semantics.iteration import native_iterable, native_view
from lampwork.capture.semantics.keys import check_key
from lampwork.capture.semantics.mappings import mapping_or_pairs
from lampwork.capture.semantics.protocols import found_behind
from lampwork.capture.semantics.repr_proxy import repr_proxy
from lampwork.capture.semantics.sequences import container_method
from lampwork.capture.semantics.symbolic import fixed
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_READING = frozenset(
    {
        "get", "keys", "values", "items", "copy", "count", "index", "isdisjoint", "issubset", "issuperset", "union",
        "intersection", "difference", "symmetric_difference", "__getitem__", "__len__", "__contains__", "__iter__",
        "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__reversed__", "__add__", "__mul__", "__rmul__",
        "__or__", "__and__", "__sub__", "__xor__", "__repr__", "__str__", "__hash__", "__sizeof__", "__format__",
        "__bool__", "__class_getitem__",
    }
)  # fmt: skip
_DESCRIPTORS = (types.FunctionType, property, staticmethod, classmethod)
_MERGING = frozenset({"__init__", "update", "__ior__"})
_FORMATTING = frozenset({"format", "format_map", "__mod__", "__format__"})
_ALLOCATING = (object, list, dict, set, frozenset, tuple, int, float, str, collections.OrderedDict)
_CONTAINERS = (list, dict, set, frozenset, tuple, collections.deque, bytearray)
# What does not keep its attributes as most objects do.
_OWN_ATTRIBUTES = (
    types.ModuleType,
    type,
    enum.Enum,
    threading.local,
    types.CellType,
    types.FunctionType,
    types.MethodType,
    super,
    TraceTensor,
)
_PURE_OWNERS: tuple[type, ...] = (
    *CONSTANTS,
    re.Pattern,
    re.Match,
    slice,
    types.GenericAlias,
    torch.finfo,
)
_ITERATORS: frozenset[type] = frozenset(
    {
        type(iter([])),
        type(iter(())),
        type(iter({})),
        type(iter({}.keys())),
        type(iter({}.values())),
        type(iter({}.items())),
        type(iter(range(0))),
        type(iter("")),
        type(iter(set())),
        type({}.keys()),
        type({}.values()),
        type({}.items()),
        enumerate,
        zip,
        map,
        filter,
        reversed,
    }
)


def call_method(
    interp: Interpreter, owner: Any, name: str, bound: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """bound(*args, **kwargs), where `bound` is the native method `name` of `owner`.

    Raises:
        Break: the method writes to an outside object that has no shadow, or is not known to be free of effects.
    """
    values = [interp.force(a) for a in args]
    if name in ("__setattr__", "__getattribute__", "__delattr__"):
        return _attribute_slot(interp, owner, bound, values)
    kind = type(owner)
    if kind is torch.device and name in ("__enter__", "__exit__", "__call__"):
        raise Break("LW105", f"torch.device.{name}()")
    if isinstance(owner, type):
        return _class_method(interp, owner, name, bound, values, kwargs)
    if kind is types.MappingProxyType:
        if name == "get" and len(values) in (1, 2) and not kwargs:
            return found_behind(interp, owner, values[0], values[1] if len(values) == 2 else None)
        table = interp.environment.behind(owner)
        return call_method(interp, table, name, getattr(table, name), args, kwargs)
    if isinstance(owner, _CONTAINERS):
        outside = (
            interp.environment.entry(owner) is not None
            and id(owner) not in interp.environment.shadows.of_copy
        )
        if outside:
            if name not in _READING:
                raise Break("LW111", f"{name}() writes to an outside {kind.__name__}")
            native_view(interp, owner)
        if name == "__getitem__" and isinstance(owner, dict):
            return _item_of_dict(interp, owner, values)
        if name in _MERGING and isinstance(owner, dict):
            # defaultdict() takes a function first.
            first = 1 if name == "__init__" and isinstance(owner, collections.defaultdict) else 0
            ordered = isinstance(owner, collections.OrderedDict)
            values[first:] = [mapping_or_pairs(interp, value, ordered) for value in values[first:]]
        found = container_method(interp, owner, name, values, kwargs)
        return _run(interp, bound, values, kwargs) if found is NotImplemented else found
    if kind is str and name in _FORMATTING:
        return bound(
            *[repr_proxy(interp, v) for v in values], **{k: repr_proxy(interp, v) for k, v in kwargs.items()}
        )
    if isinstance(owner, re.Pattern) and name in ("sub", "subn"):
        return _substitute(interp, bound, values, kwargs)
    if isinstance(owner, (int, float, complex)):
        # As an argument of theirs a symbolic number is of a class that they do not know.
        values = [fixed(value) for value in values]
    if isinstance(owner, _PURE_OWNERS) or kind in _ITERATORS:
        return _run(interp, bound, values, kwargs)
    if name in ("__get__", "__set__", "__delete__") and isinstance(owner, _DESCRIPTORS):
        return _descriptor_slot(interp, owner, name, values)
    if name == "__init__":
        if isinstance(owner, BaseException):
            _check_own(interp, owner, name)
            return bound(*values, **kwargs)
        if values or kwargs:
            _check_takes_arguments(interp, owner)
        return None
    if name in (
        "__eq__",
        "__ne__",
        "__hash__",
        "__repr__",
        "__str__",
        "__format__",
        "__reduce_ex__",
        "__dir__",
    ):
        return bound(*values, **kwargs)
    if name in ("with_traceback", "add_note") and isinstance(owner, BaseException):
        _check_own(interp, owner, name)
        return bound(*values)
    if name == "__init_subclass__":
        return None
    code = "LW104" if kind.__module__ in ("random", "_io") else "LW103"
    raise Break(code, f"{kind.__name__}.{name}()")


def _check_own(interp: Interpreter, owner: BaseException, name: str) -> None:
    """
    Raises:
        Break: the exception is from outside, and the method writes to it.
    """
    if interp.environment.entry(owner) is not None:
        raise Break("LW111", f"{name}() writes to an outside {type(owner).__name__}")


def _check_takes_arguments(interp: Interpreter, owner: Any) -> None:
    """object.__init__(owner, ...) takes arguments only where the class leaves them to its `__new__`.

    Raises:
        TypeError: it does not.
    """
    kind = type(owner)
    own_init, own_new = (interp.lookup(kind, name)[1] is not object for name in ("__init__", "__new__"))
    if own_init:
        raise TypeError("object.__init__() takes exactly one argument (the instance to initialize)")
    if not own_new:
        raise TypeError(f"{kind.__name__}() takes no arguments")


def _item_of_dict(interp: Interpreter, owner: dict[Any, Any], values: list[Any]) -> Any:
    """dict.__getitem__(owner, key), which asks a `__missing__` of a subclass."""
    table = native_view(interp, owner)
    (key,) = values
    check_key(interp, key, table)
    missing = interp.python_method(type(owner), "__missing__")
    if missing is not None and key not in table:
        return interp.call(missing, [owner, key], {})
    return dict.__getitem__(table, key)


def _run(interp: Interpreter, bound: Any, values: list[Any], kwargs: dict[str, Any]) -> Any:
    if not kwargs and bound.__name__ in (
        "append",
        "get",
        "pop",
        "setdefault",
        "__setitem__",
        "insert",
        "add",
    ):
        return bound(*values)
    ready = [native_iterable(interp, v) for v in values]
    named = {
        key: Callback(interp, value) if isinstance(value, (types.FunctionType, types.MethodType)) else value
        for key, value in ((k, interp.force(v)) for k, v in kwargs.items())
    }
    return bound(*ready, **named)


def _substitute(interp: Interpreter, bound: Any, values: list[Any], kwargs: dict[str, Any]) -> Any:
    """pattern.sub(repl, ...), whose `repl` may be anything that can be called."""
    named = {key: interp.force(value) for key, value in kwargs.items()}
    if values:
        values = [called_back(interp, values[0]), *values[1:]]
    elif "repl" in named:
        named["repl"] = called_back(interp, named["repl"])
    return _run(interp, bound, values, named)


def called_back(interp: Interpreter, function: Any) -> Any:
    """What native code is going to call, if it can be called: the call comes back into the interpreter."""
    if type(function) is Callback or interp.lookup(type(function), "__call__")[0] is MISSING:
        return function
    return Callback(interp, function)


def _attribute_slot(interp: Interpreter, owner: Any, bound: Any, values: list[Any]) -> Any:
    """`__getattribute__`, `__setattr__` and `__delattr__` of native classes, in whichever way they are called.

    Raises:
        Break: LW103: this class's is not what objects of this kind have, and may refuse them.
    """
    name, kind = bound.__name__, interp.environment.python_type(owner)
    if len(values) != (2 if name == "__setattr__" else 1):
        raise TypeError(f"expected {1 + (name == '__setattr__')} arguments, got {len(values)}")
    slot: Any = bound.__func__ if type(bound) is types.MethodType else bound
    bases = [base for base in kind.__mro__ if type(vars(base).get(name)) is types.WrapperDescriptorType]
    native = bases[0]
    special = issubclass(type(owner), _OWN_ATTRIBUTES)
    is_own = slot.__objclass__ is native
    if not is_own and (special or (name != "__getattribute__" and native not in GENERIC)):
        raise Break("LW103", f"{slot.__objclass__.__name__}.{name}() of a {kind.__name__}")
    if not special:
        plain = {
            "__getattribute__": load_instance_attr,
            "__setattr__": store_instance_attr,
            "__delattr__": delete_instance_attr,
        }
        return cast(Any, plain[name])(interp, owner, *values)
    if interp.python_method(kind, name) is not None:
        raise Break("LW103", f"{kind.__name__}.{name}(), which is of a kind of its own,")
    special_way = {"__getattribute__": load_attr, "__setattr__": store_attr, "__delattr__": delete_attr}
    return cast(Any, special_way[name])(interp, owner, *values)


def _descriptor_slot(interp: Interpreter, owner: Any, name: str, values: list[Any]) -> Any:
    """function.__get__(obj, cls), property.__set__(obj, value) and their like."""
    obj = values[0]
    if isinstance(owner, property):
        if obj is None:
            return owner
        accessor = {"__get__": owner.fget, "__set__": owner.fset, "__delete__": owner.fdel}[name]
        if accessor is None:
            raise AttributeError(f"property of {type(obj).__name__!r} object has no {name.strip('_')}ter")
        return interp.call(accessor, [obj, *values[1:]] if name == "__set__" else [obj], {})
    if isinstance(owner, staticmethod):
        return cast(Any, owner).__func__
    if isinstance(owner, classmethod):
        return types.MethodType(cast(Any, owner).__func__, values[1] if len(values) > 1 else type(obj))
    return owner if obj is None else types.MethodType(owner, obj)


def _class_method(
    interp: Interpreter, owner: type, name: str, bound: Any, values: list[Any], kwargs: dict[str, Any]
) -> Any:
    """A native class method: `dict.fromkeys`, `tuple.__new__`, `int.from_bytes`."""
    if name == "__new__":
        if values and isinstance(values[0], type) and owner in _ALLOCATING:
            if owner in (object, dict, list):
                return bound(values[0])
            if owner in (tuple, set, frozenset):
                values = [values[0], *(native_iterable(interp, value) for value in values[1:])]
            return bound(*values, **{name: interp.force(value) for name, value in kwargs.items()})
        raise Break("LW103", f"{owner.__name__}.__new__()")
    if name == "__subclasses__" and not values and not kwargs:
        # No version tag of the class tells of one that comes or dies.
        source = Result(Known(functools.partial(type.__subclasses__, owner), f"{owner.__qualname__}.{name}"))
        return interp.environment.read(type.__subclasses__(owner), source, f"{owner.__qualname__}.{name}()")
    if name == "mro":
        interp.environment.classes.guard_bases(owner)
    if owner in (dict, int, float, str, bytes, collections.OrderedDict) or name in (
        "mro",
        "__subclasscheck__",
        "__instancecheck__",
    ):
        return _run(interp, bound, values, kwargs)
    if name == "__init_subclass__":
        return None
    if name == "__call__":
        return interp.call(owner, values, kwargs)
    raise Break("LW103", f"{owner.__name__}.{name}()")
