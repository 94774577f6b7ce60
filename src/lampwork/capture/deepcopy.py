"""copy.deepcopy in the region: every attribute it reads from outside is guarded."""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.attributes import lookup_type, read_state
from lampwork.capture.breaks import Break
from lampwork.capture.values import is_constant
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_SHARED = (types.FunctionType, types.BuiltinFunctionType, type, enum.Enum, types.ModuleType)
_HOOKS = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")


def deepcopy(interp: Interpreter, value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy of data and of objects of plain Python classes.

    Raises:
        Break: LW103 for objects that say themselves how they are copied, and for tensors and modules.
    """
    if is_constant(value) or isinstance(value, _SHARED):
        return value
    if id(value) in memo:
        return memo[id(value)]
    kind = type(value)
    if kind is list:
        items: list[Any] = []
        memo[id(value)] = items
        items.extend(deepcopy(interp, item, memo) for item in cast(list[Any], value))
        return items
    if kind is dict:
        table: dict[Any, Any] = {}
        memo[id(value)] = table
        for key, item in cast(dict[Any, Any], value).items():
            table[deepcopy(interp, key, memo)] = deepcopy(interp, item, memo)
        return table
    if kind is tuple:
        return tuple(deepcopy(interp, item, memo) for item in cast(tuple[Any, ...], value))
    if kind in (set, frozenset):
        return kind(deepcopy(interp, item, memo) for item in value)
    if not _is_plain(kind):
        raise Break("LW103", f"copy.deepcopy() of a {kind.__name__}")
    made = object.__new__(kind)
    memo[id(value)] = made
    for name, item in read_state(interp, value).items():
        made.__dict__[name] = deepcopy(interp, item, memo)
    return made


def _is_plain(kind: type) -> bool:
    if issubclass(kind, (torch.nn.Module, torch.Tensor, TraceTensor)) or kind.__new__ is not object.__new__:
        return False
    return all(lookup_type(kind, hook)[1] is object or not hasattr(kind, hook) for hook in _HOOKS)
