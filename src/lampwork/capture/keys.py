"""Keys of dicts and members of sets: native code hashes and compares them, so what it would find must be guarded."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from lampwork.capture.attributes import python_method, read_state
from lampwork.capture.breaks import Break
from lampwork.capture.symbolic import SYMBOLS, NumbersNeeded
from lampwork.capture.values import CONSTANTS
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter


def check_key(interp: Interpreter, key: Any, members: Iterable[Any]) -> None:
    """See to it that native code may look for `key` among `members`, by hash and equality.

    Raises:
        Break: LW103 if that would run code with effects, LW111 if the answer may change unseen from call to call.
    """
    kind = type(key)
    if kind in CONSTANTS or isinstance(key, (type, types.FunctionType, enum.Enum)):
        return
    if kind in (tuple, frozenset):
        for item in key:
            if type(item) is TraceTensor:
                raise Break("LW111", f"a {kind.__name__} of tensors is a key")
            check_key(interp, item, ())
        return
    method = python_method(kind, "__hash__")
    if kind is TraceTensor or method is None:
        _check_identity(interp, key, members)
        return
    entry = interp.outside.entry(key)
    if entry is not None and not entry.known:
        # Native code reads the key as it is: all of it must be what it was.
        read_state(interp, key)
    before = interp.effects.writes
    if type(interp.call(method, [key], {})) in SYMBOLS:
        raise NumbersNeeded(TypeError("a SymInt as hash"))
    if interp.effects.writes != before or (entry is not None and id(key) in interp.effects.attributes):
        raise Break("LW103", f"{kind.__name__}.__hash__() of an object that is written to")


def checked(interp: Interpreter, keys: Iterable[Any]) -> list[Any]:
    """Objects that are to become keys of one dict or members of one set."""
    found: list[Any] = []
    for key in keys:
        check_key(interp, key, found)
        found.append(key)
    return found


def _check_identity(interp: Interpreter, key: Any, members: Iterable[Any]) -> None:
    """A key that is equal to itself only: objects that are not it now must not be it on later calls."""
    entry = interp.outside.entry(key)
    if type(key) is not TraceTensor and (entry is None or entry.known):
        return
    for member in members:
        if isinstance(member, torch.Tensor) and type(member) is not TraceTensor:
            raise Break("LW111", "a tensor is looked for among the keys of an outside container")
        if member is not key and type(member) is type(key):
            guard_distinct(interp, key, member)


def guard_distinct(interp: Interpreter, left: Any, right: Any) -> None:
    """Two arguments that are not one object now must not be one on a later call either."""
    if left is right:
        return
    mine, other = interp.outside.of_trace.get(id(left)), interp.outside.of_trace.get(id(right))
    if mine is not None and other is not None and not (mine.bound and other.bound):
        interp.guards.add(mine.source, "distinct", other.source)
    first, second = interp.outside.entry(left), interp.outside.entry(right)
    if first is not None and second is not None and not (first.known and second.known):
        interp.guards.add(first.source, "distinct", second.source)
