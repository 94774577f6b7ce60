"""What of a backend makes a difference to what it compiles: part of the key under which that is kept."""

from __future__ import annotations

import types
import weakref
from collections.abc import Hashable
from typing import Any, cast

import torch

from lampwork.backends.protocol import Backend
from lampwork.plugins.fingerprint import state_of
from lampwork.records import record

_ATOMS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)

# The attributes, by class, that compiling itself changed, such as counters: they are no settings.
_volatile: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()


def identity(backend: Backend) -> Hashable:
    """Equal for backends that compile alike: the same object, or an equal one, with the same settings and code.

    Settings are attributes that are numbers, texts or tuples of such. Objects of one class without any state are
    equal. The code is that of the methods. What they reach besides does not count: within one process that is the same
    object, and its state is not only settings (a list of the graphs seen).
    """
    kind = type(backend)
    code = _code(kind)
    if kind.__hash__ is object.__hash__ and not any(state_of(backend)):
        return (backend.name, kind, code)
    return (backend.name, _who(backend), code, settings(backend))


def settings(backend: Backend) -> Hashable:
    """The attributes of a backend that are numbers, texts or tuples of such, with their names."""
    ignored = _volatile.get(type(backend), ())
    state = dict(state_of(backend))
    names = sorted(name for name in state if name not in ignored and _is_plain(state[name]))
    return tuple((name, type(state[name]).__name__, state[name]) for name in names)


def note_changes(backend: Backend, before: Hashable) -> None:
    """What differs from the `settings` of before it compiled is no setting."""
    now = {entry[0]: entry for entry in cast("tuple[Any, ...]", settings(backend))}
    then = {entry[0]: entry for entry in cast("tuple[Any, ...]", before)}
    changed = {name for name in (*now, *then) if now.get(name) != then.get(name)}
    if changed:
        _volatile.setdefault(type(backend), set()).update(changed)


def _code(kind: type) -> Hashable:
    """The code of the methods of a class, which may have been replaced since its objects were made."""
    return tuple(
        (name, member.__code__)
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, types.FunctionType)
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, cast("tuple[Any, ...]", value)))
    return isinstance(value, _ATOMS)


def _who(backend: Backend) -> Hashable:
    try:
        hash(backend)
    except TypeError:
        return _Same(backend)
    return backend


@record(eq=False)
class _Same:
    """Equal for one and the same object only, which it keeps."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
