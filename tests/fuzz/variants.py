"""Other values for a slot: of the same type, or of one that is easily taken for it."""

from __future__ import annotations

import cmath
import collections
import copy
import enum
import functools
import logging
import math
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch


def nudge(value: Any) -> Any:
    """A result that a caller can tell from `value`."""
    if isinstance(value, torch.Tensor):
        return value + 0.125 if value.is_floating_point() else value
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if type(value) is str:
        return value + "x"
    if type(value) is tuple and value:
        return (nudge(value[0]), *value[1:])
    return value


def other_function(f: Any) -> Any:
    @functools.wraps(f, assigned=("__name__", "__qualname__"), updated=())
    def changed(*args: Any, **kwargs: Any) -> Any:
        return nudge(f(*args, **kwargs))

    del changed.__wrapped__
    return changed


def other_code(code: types.CodeType) -> types.CodeType | None:
    """The same code with its numbers one higher; None where it has none."""
    constants = tuple(c + 1 if type(c) in (int, float) else c for c in code.co_consts)
    return None if constants == code.co_consts else code.replace(co_consts=constants)


_PAIRS: list[tuple[Any, Any]] = [
    (torch.relu, torch.neg), (torch.exp, torch.sin), (torch.sigmoid, torch.tanh), (torch.add, torch.sub),
    (torch.mul, torch.add), (torch.cat, torch.stack), (torch.cos, torch.sin), (torch.abs, torch.neg),
    (torch.neg, torch.relu), (torch.sin, torch.cos), (torch.sub, torch.mul), (math.sin, math.cos),
    (math.sqrt, math.exp), (operator.add, operator.mul), (operator.mul, operator.sub), (max, min),
    (min, max), (len, id), (any, all), (all, any), (sum, max), (cmath.exp, cmath.sin),
    (torch.zeros, torch.ones), (torch.ones, torch.zeros), (torch.maximum, torch.minimum),
]  # fmt: skip


def other_builtin(f: Any) -> Any:
    return next((b for a, b in _PAIRS if a is f and f is not len), None)


def sibling(cls: type) -> type | None:
    """A class of the same layout, whose methods answer otherwise."""
    if cls.__module__ == "builtins" or issubclass(cls, (enum.Enum, torch.Tensor)):
        return None
    names = [
        n
        for n in ("forward", "__call__", "__add__", "__mul__", "__getitem__", "__len__", "value", "scale")
        if _method(cls, n)
    ]
    if not names:
        names = [
            n
            for base in cls.__mro__[:-1]
            for n, f in vars(base).items()
            if isinstance(f, types.FunctionType) and not n.startswith("__")
        ]
    body: dict[str, Any] = {name: other_function(getattr(cls, name)) for name in names[:3]}
    body["__slots__"] = ()
    try:
        return type(cls)(cls.__name__, (cls,), body)
    except (TypeError, RuntimeError):  # torch forbids subclasses of its base class of tensors
        return None


def _method(cls: type, name: str) -> bool:
    held = next((vars(base)[name] for base in cls.__mro__[:-1] if name in vars(base)), None)
    return isinstance(held, types.FunctionType)


def other_tensor(t: torch.Tensor, how: str) -> torch.Tensor:
    """Another tensor in the place of `t`."""
    d = t.detach()
    if how == "values":
        made = (
            d.flip(0).mul(2).add(1)
            if d.dim() and d.dtype.is_floating_point
            else d.clone().logical_not().to(d.dtype)
        )
    elif how == "dtype":
        made = d.to(torch.float64 if d.dtype != torch.float64 else torch.float32)
    elif how == "strides":
        made = d.clone().movedim(0, -1).contiguous().movedim(-1, 0)
    elif how == "shape":
        made = torch.cat([d, d]) if d.dim() else d.reshape(1).clone()
    else:
        made = d.clone()
    if isinstance(t, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=t.requires_grad and made.dtype.is_floating_point)
    return made.requires_grad_() if t.requires_grad and made.dtype.is_floating_point else made


def variants(value: Any, depth: int = 0) -> dict[str, Callable[[Any], Any]]:
    """Other values for a slot that holds `value`: a name for each, and a function of the old value that makes it."""
    made: dict[str, Callable[[Any], Any]] = {}
    kind = type(value)
    if kind is bool:
        made = {"flipped": lambda v: not v, "as an int": int}
    elif kind is int:
        made = {"+1": lambda v: v + 1, "negated": lambda v: -v - 1, "as a float": float}
        if value in (0, 1):
            made["as a bool"] = bool
    elif kind is float:
        made = {"* 1.5 + 1": lambda v: v * 1.5 + 1, "nan": lambda v: math.nan}
        if value == 0:
            made["sign of zero"] = lambda v: -v
        if value == int(value) if math.isfinite(value) else False:
            made["as an int"] = int
    elif kind is complex:
        made = {"+1": lambda v: v + 1}
    elif kind is str:
        made = {"+ x": lambda v: v + "x"}
    elif kind is bytes:
        made = {"+ x": lambda v: v + b"x"}
    elif value is None:
        made = {"None to 2.0": lambda v: 2.0}
    elif kind is torch.dtype:
        made = {"dtype": lambda v: torch.float64 if v != torch.float64 else torch.float32}
    elif isinstance(value, torch.Tensor):
        if kind in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided:
            hows = ["values", "same content"]
            if value.dtype.is_floating_point:
                hows += ["dtype", "shape"]
                if value.dim() > 1:
                    hows.append("strides")
            made = {f"tensor with other {how}": functools.partial(other_tensor, how=how) for how in hows}
    elif kind is types.FunctionType:
        made = {"other function": other_function}
    elif kind in (types.BuiltinFunctionType, type(torch.relu)) or isinstance(
        value, types.BuiltinFunctionType
    ):
        if other_builtin(value) is not None:
            made["other builtin"] = other_builtin
        made["wrapped builtin"] = other_function
    elif kind is types.MethodType:
        made = {"method wrapped": other_function, "bound to a copy": _rebound}
    elif kind is functools.partial:
        made = _partials(value)
    elif isinstance(value, (staticmethod, classmethod)):
        made = {"other function": lambda v: kind(other_function(v.__func__))}
    elif isinstance(value, property):
        if value.fget is not None:
            made = {"other getter": lambda v: property(other_function(v.fget), v.fset, v.fdel)}
    elif isinstance(value, type):
        if sibling(value) is not None:
            made = {"sibling class": sibling}
    elif kind is types.CodeType:
        if other_code(value) is not None:
            made = {"other code": other_code}
    elif kind in (list, tuple, collections.deque) or isinstance(value, tuple) and hasattr(value, "_fields"):
        if depth < 2:
            made = _sequences(value, depth)
    elif kind in (dict, collections.OrderedDict, collections.defaultdict):
        made = _mappings(value, depth) if depth < 2 else {}
    elif kind in (set, frozenset):
        made = {"set with another item": lambda v: type(v)([*v, 77])}
    elif isinstance(value, weakref.ref):
        made = {"dead reference": _dead}
    elif isinstance(value, enum.Enum):
        others = list(kind)
        if len(others) > 1:
            made = {
                "other member": lambda v: list(type(v))[(list(type(v)).index(v) + 1) % len(list(type(v)))]
            }
    elif isinstance(value, torch.nn.Module):
        made = {"copy with other weights": _other_module, "equal copy": copy.deepcopy}
    elif hasattr(value, "__dict__") and not isinstance(value, _UNCOPIED):
        made = {"changed copy": _changed_copy, "equal copy": copy.copy}
    return made


# `copy.copy` of an operator asks the empty copy for its attributes, which asks itself for them, without end.
_UNCOPIED = (types.ModuleType, logging.Logger, torch._ops.OpOverloadPacket)


class _Dead:
    pass


def _dead(ref: Any) -> Any:
    return weakref.ref(_Dead())


def _rebound(method: Any) -> Any:
    return types.MethodType(method.__func__, _changed_copy(method.__self__))


def _changed_copy(value: Any) -> Any:
    """A copy with its first attribute that can be changed, changed."""
    if isinstance(value, torch.nn.Module):
        return _other_module(value)
    twin = copy.copy(value)
    for name, held in list(getattr(twin, "__dict__", {}).items()):
        for make in variants(held, 1).values():
            twin.__dict__[name] = make(held)
            return twin
    return twin


def _other_module(module: torch.nn.Module) -> torch.nn.Module:
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for p in (*twin.parameters(), *twin.buffers()):
            if p.dtype.is_floating_point and not p.is_inference():
                # Not so far from what they were that rounding grows into a difference.
                p.mul_(0.5).add_(0.25)
    return twin


def _partials(value: functools.partial[Any]) -> dict[str, Callable[[Any], Any]]:
    made: dict[str, Callable[[Any], Any]] = {
        "other function": lambda v: functools.partial(other_function(v.func), *v.args, **v.keywords)
    }
    for i, item in enumerate(value.args):
        for label, make in list(variants(item, 1).items())[:1]:
            made[f"argument {i} {label}"] = functools.partial(_partial_argument, i, make)
    for name, item in value.keywords.items():
        for label, make in list(variants(item, 1).items())[:1]:
            made[f"keyword {name} {label}"] = functools.partial(_partial_keyword, name, make)
    return made


def _partial_argument(i: int, make: Any, v: Any) -> Any:
    return functools.partial(v.func, *(make(a) if i == j else a for j, a in enumerate(v.args)), **v.keywords)


def _partial_keyword(name: str, make: Any, v: Any) -> Any:
    return functools.partial(
        v.func, *v.args, **{k: make(a) if k == name else a for k, a in v.keywords.items()}
    )


def _rebuild(like: Any, items: list[Any]) -> Any:
    if hasattr(like, "_fields"):
        return type(like)(*items)
    if isinstance(like, collections.deque):
        return collections.deque(items, like.maxlen)
    return type(like)(items)


def _sequences(value: Any, depth: int) -> dict[str, Callable[[Any], Any]]:
    made: dict[str, Callable[[Any], Any]] = {}
    for i, item in enumerate(list(value)[:2]):
        for label, make in list(variants(item, depth + 1).items())[:1]:
            made[f"item {i} {label}"] = lambda v, i=i, make=make: _rebuild(
                v, [make(x) if i == j else x for j, x in enumerate(v)]
            )
    if not hasattr(value, "_fields"):
        if len(value) > 1:
            made["reversed"] = lambda v: _rebuild(v, list(v)[::-1])
        if value:
            made["one shorter"] = lambda v: _rebuild(v, list(v)[:-1])
            made["one longer"] = lambda v: _rebuild(v, [*v, v[-1]])
    return made


def _mappings(value: Any, depth: int) -> dict[str, Callable[[Any], Any]]:
    def rebuilt(v: Any, items: dict[Any, Any]) -> Any:
        twin = copy.copy(v)
        twin.clear()
        twin.update(items)
        return twin

    made: dict[str, Callable[[Any], Any]] = {}
    for key, item in list(value.items())[:2]:
        for label, make in list(variants(item, depth + 1).items())[:1]:
            name = f"{key!r} {label}" if isinstance(key, (str, int)) else f"a key {label}"
            made[name] = lambda v, key=key, make=make: rebuilt(
                v, {k: make(x) if k == key else x for k, x in v.items()}
            )
    if len(value) > 1:
        made["reordered"] = lambda v: rebuilt(v, dict(reversed(list(v.items()))))
    return made
