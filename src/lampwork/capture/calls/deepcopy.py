"""copy.copy and copy.deepcopy in the region: every attribute they read from outside is guarded."""

from __future__ import annotations

import collections
import enum
import types
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.values import is_constant
from lampwork.capture.semantics.attributes import has_attr, load_attr
from lampwork.capture.semantics.held_state import read_state
from lampwork.capture.state.classes import MISSING, is_allocated_by
from lampwork.capture.state.treatment import is_slot
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import copy

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_SHARED = (types.FunctionType, types.BuiltinFunctionType, type, enum.Enum, types.ModuleType)
_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
_CONTAINERS = (list, dict, tuple, set, frozenset, collections.OrderedDict, collections.deque)


def shallow_copy(interp: Interpreter, value: Any) -> Any:
    """copy.copy of data and of objects of plain Python classes.

    Raises:
        Break: LW103 for objects that say themselves how they are reduced, LW106 for tensors.
    """
    kind = type(value)
    if is_constant(value) or kind in _CONTAINERS or isinstance(value, _SHARED):
        return copy.copy(value)
    if kind is TraceTensor:
        raise Break("LW106", "copy.copy() of a tensor")
    hook = interp.python_method(kind, "__copy__")
    if hook is not None:
        return interp.call(hook, [value], {})
    if kind is collections.defaultdict:
        return kind(load_attr(interp, value, "default_factory"), cast("dict[Any, Any]", value))
    _check_plain(interp, kind, "copy")
    made = object.__new__(kind)
    state = _state(interp, value)
    if state:
        _check_fallback(interp, made, "__setstate__", "copy")
    _fill(made, state)
    return made


def deepcopy(interp: Interpreter, value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy of data and of objects of plain Python classes.

    Raises:
        Break: LW103 for objects that say themselves how they are reduced, and for tensors and modules.
    """
    if is_constant(value) or isinstance(value, _SHARED):
        return value
    if id(value) in memo:
        return memo[id(value)]
    kind = type(value)
    if kind is TraceTensor:
        if interp.python_method(interp.environment.python_type(value), "__deepcopy__") is not None:
            raise Break("LW103", "copy.deepcopy() of a tensor by a method of the program")
        return value.__deepcopy__(memo)
    if kind is list:
        items: list[Any] = []
        memo[id(value)] = items
        items.extend(deepcopy(interp, item, memo) for item in cast(list[Any], value))
        return items
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        table = cast("dict[Any, Any]", kind())
        if kind is collections.defaultdict:
            cast(Any, table).default_factory = load_attr(interp, value, "default_factory")
        memo[id(value)] = table
        for key, item in cast(dict[Any, Any], value).items():
            table[deepcopy(interp, key, memo)] = deepcopy(interp, item, memo)
        return table
    if kind is tuple:
        return tuple(deepcopy(interp, item, memo) for item in cast(tuple[Any, ...], value))
    if kind in (set, frozenset):
        return kind(deepcopy(interp, item, memo) for item in value)
    if kind is collections.deque:
        return collections.deque((deepcopy(interp, item, memo) for item in value), value.maxlen)
    hook = interp.python_method(kind, "__deepcopy__")
    if hook is not None and not isinstance(value, torch.Tensor):
        made = memo[id(value)] = interp.call(hook, [value, memo], {})
        return made
    _check_plain(interp, kind, "deepcopy")
    _check_fallback(interp, value, "__deepcopy__", "deepcopy")
    made = object.__new__(kind)
    memo[id(value)] = made
    state = {name: deepcopy(interp, item, memo) for name, item in _state(interp, value).items()}
    if state:
        _check_fallback(interp, made, "__setstate__", "deepcopy")
    _fill(made, state)
    return made


def _check_fallback(interp: Interpreter, obj: Any, name: str, what: str) -> None:
    """
    Raises:
        Break: LW103: a `__getattr__` of the program gives a method by which the object would be copied.
    """
    if interp.lookup(type(obj), "__getattr__")[0] is not MISSING and has_attr(interp, obj, name):
        raise Break("LW103", f"copy.{what}() of a {type(obj).__name__}, whose __getattr__ gives {name}")


def _fill(made: Any, state: dict[str, Any]) -> None:
    """Give a copy its attributes: as eager does, past what its class has under their names."""
    for name, item in state.items():
        slot = next((vars(base)[name] for base in type(made).__mro__ if name in vars(base)), None)
        if is_slot(slot):
            slot.__set__(made, item)
        else:
            made.__dict__[name] = item


def _check_plain(interp: Interpreter, kind: type, name: str) -> None:
    plain = not issubclass(
        kind, (torch.nn.Module, torch.Tensor, TraceTensor, BaseException, dict, list, tuple, set)
    )
    if kind.__new__ is not object.__new__ or kind.__module__ == "torch" or not is_allocated_by(object, kind):
        plain = False
    if not plain or any(
        hasattr(kind, hook) and interp.lookup(kind, hook)[1] is not object for hook in _HOOKS
    ):
        raise Break("LW103", f"copy.{name}() of a {kind.__name__}")


def _state(interp: Interpreter, value: Any) -> dict[str, Any]:
    """All attributes of an object, in its dict and in slots."""
    state = read_state(interp, value) if hasattr(value, "__dict__") else {}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            try:
                state[name] = load_attr(interp, value, name)
            except AttributeError:
                continue
    return state
