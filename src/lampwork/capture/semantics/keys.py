"""Keys of dicts and members of sets: native code hashes and compares them, so what it would find must be guarded."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.values import CONSTANTS
from lampwork.capture.semantics.held_state import read_state
from lampwork.capture.semantics.symbolic import SYMBOLS, NumbersNeeded
from lampwork.capture.state.unseen import may_repeat, may_repeat_hash
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter


def check_key(interp: Interpreter, key: Any, members: Iterable[Any]) -> None:
    """See to it that native code may look for `key` among `members`, by hash and equality.

    Raises:
        Break: LW103 if that would run code with effects, LW111 if the answer may change unseen from call to call.
    """
    kind = type(key)
    if kind in CONSTANTS or isinstance(key, (type, enum.Enum)):
        return
    if kind in (tuple, frozenset):
        for item in key:
            if type(item) is TraceTensor:
                raise Break("LW111", f"a {kind.__name__} of tensors is a key")
            check_key(interp, item, ())
            if interp.environment.differs(item) and interp.python_method(type(item), "__eq__") is None:
                interp.environment.register(item)
        return
    method = interp.python_method(kind, "__hash__")
    if kind is TraceTensor or method is None:
        _check_identity(interp, key, members)
        if kind is not TraceTensor and interp.python_method(kind, "__eq__") is not None:
            _check_equality(interp, key, members)
        return
    entry = interp.environment.entry(key)
    if entry is not None and not entry.known:
        # Native code reads the key as it is: all of it must be what it was.
        read_state(interp, key)
    before = interp.effects.writes
    if type(interp.call(method, [key], {})) in SYMBOLS:
        raise NumbersNeeded(TypeError("a SymInt as hash"))
    if interp.effects.writes != before or (
        entry is not None and id(entry.value) in interp.effects.attributes
    ):
        raise Break("LW103", f"{kind.__name__}.__hash__() of an object that is written to")
    may_repeat(method, key)
    _check_equality(interp, key, members)


def _check_equality(interp: Interpreter, key: Any, members: Iterable[Any]) -> None:
    """What `__eq__` reads is guarded for each member that native code would compare with the key."""
    before = interp.effects.writes
    number = hash(key)
    environment = interp.environment
    for member in members:
        may_repeat_hash(member)
        if member is key or hash(member) != number:
            continue
        if environment.entry(member) is None and not environment.births.is_inside(member):
            # A key of a container from outside: the same object on each call, or one that is equal to it.
            environment.register(member, "a key")
        for receiver, other in ((member, key), (key, member)):
            method = interp.python_method(type(receiver), "__eq__")
            if method is None:
                continue
            result = interp.call(method, [receiver, other], {})
            may_repeat(method, receiver, other)
            if result is not NotImplemented:
                break
    if interp.effects.writes != before:
        raise Break("LW103", f"{type(key).__name__}.__eq__(), which writes to objects,")


def checked(interp: Interpreter, keys: Iterable[Any]) -> list[Any]:
    """Objects that are to become keys of one dict or members of one set."""
    found: list[Any] = []
    for key in keys:
        check_key(interp, key, found)
        found.append(key)
    return found


def _check_identity(interp: Interpreter, key: Any, members: Iterable[Any]) -> None:
    """A key that is equal to itself only: objects that are not it now must not be it on later calls."""
    entry = interp.environment.entry(key)
    if type(key) is not TraceTensor and entry is None:
        return
    for member in members:
        if entry is not None and entry.known and not interp.environment.differs(member):
            continue
        if isinstance(member, torch.Tensor) and type(member) is not TraceTensor:
            raise Break("LW111", "a tensor is looked for among the keys of an outside container")
        if member is not key and type(member) is type(key):
            guard_distinct(interp, key, member)


def guard_distinct(interp: Interpreter, left: Any, right: Any) -> None:
    """Two arguments that are not one object now must not be one on a later call either."""
    if left is right:
        return
    environment = interp.environment
    for one, another in ((left, right), (right, left)):
        unseen = (
            type(one) is type(another) and environment.differs(one) and environment.entry(another) is None
        )
        if unseen and not environment.births.is_inside(another):
            environment.register(another)
    mine, other = environment.lifted(left), environment.lifted(right)
    if mine is not None and other is not None and not (mine.bound and other.bound):
        interp.guards.add(mine.source, "distinct", other.source)
    first, second = interp.environment.entry(left), interp.environment.entry(right)
    if first is not None and second is not None and not (first.known and second.known):
        interp.guards.add(first.source, "distinct", second.source)


def is_same(interp: Interpreter, left: Any, right: Any) -> bool:
    """left is right, and so it stays on later calls."""
    guard_distinct(interp, left, right)
    return left is right
