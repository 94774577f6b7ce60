"""What stands in a region for an outside container of a subclass of list, dict, set, ...

It is an object of the same class, with the items that the region sees and the attributes of the original. So native
code that is given one reads what is guarded, and does with the class what it does in eager. It is only read: a write to
the original breaks.
"""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable
from typing import Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.evaluate import strictly_equal
from lampwork.capture.state.classes import is_allocated_by
from lampwork.capture.state.treatment import slots_of
from lampwork.standard import functools

_BASES: tuple[Any, ...] = (
    collections.OrderedDict,
    collections.defaultdict,
    dict,
    list,
    collections.deque,
    set,
    frozenset,
)
# What native code asks a deque for, where a guard looks at it.
_ASKED = ("__len__", "__getitem__")


@functools.cache
def container_base(kind: type) -> Any:
    """The native container that a class is a subclass of; None if it is none, or one itself."""
    base = next((base for base in _BASES if issubclass(kind, base)), None)
    return None if base is kind or kind is collections.Counter else base


def native_keys(base: Any, table: Any) -> tuple[Any, ...]:
    """The keys of a dict or the members of a set in order, whatever its class makes of `__iter__`."""
    return tuple(base.__iter__(table))


def holds_keys(base: Any, keys: tuple[Any, ...]) -> Callable[[Any], bool]:
    """The condition that a dict or set has these keys in this order, 1 not being True."""
    return lambda table: strictly_equal(native_keys(base, table), keys)


def allocate(value: Any, base: Any, name: str) -> Any:
    """An empty container of the class of `value`, with its attributes.

    Raises:
        Break: LW111: to make one, or to look at one, runs code of the class.
    """
    kind = type(value)
    overrides = base is collections.deque and any(
        getattr(kind, name) is not getattr(base, name) for name in _ASKED
    )
    if overrides or not is_allocated_by(base, kind):
        raise Break("LW111", f"{name} is a {kind.__name__}, whose items no guard sees")
    made = (
        base.__new__(kind, frozenset.__iter__(value)) if issubclass(base, frozenset) else base.__new__(kind)
    )
    if base is collections.deque:
        base.__init__(made, (), value.maxlen)
    _share_attributes(value, made)
    return made


def _share_attributes(value: Any, made: Any) -> None:
    with contextlib.suppress(AttributeError):  # It may have slots only.
        object.__setattr__(made, "__dict__", object.__getattribute__(value, "__dict__"))
    for slot in slots_of(type(value)):
        _copy_slot(slot, value, made)


def _copy_slot(slot: types.MemberDescriptorType, value: Any, made: Any) -> None:
    try:
        slot.__set__(made, slot.__get__(value))
    except AttributeError:
        return  # It is empty.


def adder(base: Any, made: Any) -> Callable[..., None]:
    """What puts the next item, or a key and its item, into a stand-in."""
    if issubclass(base, dict):
        return cast("Callable[..., None]", functools.partial(base.__setitem__, made))
    return cast("Callable[..., None]", functools.partial(base.append, made))
