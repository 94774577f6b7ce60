"""What of a backend makes a difference to what it compiles: part of the key under which that is kept."""

from __future__ import annotations

import types
import weakref
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

from lampwork.backends.callable import CallableBackend
from lampwork.backends.protocol import Backend
from lampwork.partitioning.reached import (
    ATOMS,
    Unknown,
    atom,
    content_of,
    contents,
    is_fixed,
    of_function,
    top_of,
)
from lampwork.plugins.fingerprint import state_of
from lampwork.records import record
from lampwork.standard import functools

_DEEPEST = 20
"""So many collections inside of each other are looked at: one may contain itself."""

# What compiling itself changed, such as counters, by class or by the code of a function: no settings.
_volatile: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

Settings = Mapping[str, Hashable]


def identity(backend: Backend, now: Settings) -> Hashable:
    """Equal for backends that compile alike: the same object, or an equal one, with the same code and the settings
    `now`. Objects of one class without any state are equal. The code is that of the methods."""
    kind = type(backend)
    stateless = kind.__hash__ is object.__hash__ and not any(state_of(backend))
    ignored = _volatile.get(_owner(backend), ())
    kept = tuple((name, now[name]) for name in sorted(now) if name not in ignored)
    return (backend.name, kind if stateless else _who(backend), _code(kind), kept)


def settings(backend: Backend) -> Settings:
    """What a backend reaches that may change, by name.

    Of a function, a bound method or a callable object: everything, through other objects too (`reached.contents`):
    globals that its code names, what it closes over, its defaults, the attributes of its object. Of a backend's own
    class: attributes of the object and of its classes, and what the methods name or close over, where these are
    numbers, texts or collections of such; the state of other objects is not only settings (a list of the graphs seen).
    """
    ignored = _volatile.get(_owner(backend), ())
    if isinstance(backend, CallableBackend):
        home = top_of(getattr(_unwrapped(backend.function), "__module__", None))
        return {
            name: contents(value, home)
            for name, value in _reached(backend.function, home)
            if name not in ignored
        }
    found: dict[str, Hashable] = {}
    for name, value in _of_object(backend, top_of(type(backend).__module__)):
        plain = None if name in ignored else _plain(value)
        if plain is not None:
            found[name] = plain
    return found


def note_changes(backend: Backend, before: Settings) -> None:
    """What differs from the `settings` of before it compiled is no setting, unless it is not known."""
    now = settings(backend)
    changed = {name for name in (*now, *before) if now.get(name) != before.get(name)}
    changed = {name for name in changed if not isinstance(now.get(name, before.get(name)), Unknown)}
    if changed:
        _volatile.setdefault(_owner(backend), set()).update(changed)


def _owner(backend: Backend) -> Any:
    """Whose changes are remembered together."""
    if not isinstance(backend, CallableBackend):
        return type(backend)
    function: Any = _unwrapped(backend.function)
    return function.__code__ if isinstance(function, types.FunctionType) else type(function)


def _unwrapped(function: Any) -> Any:
    while isinstance(function, (types.MethodType, functools.partial)):
        inner: Any = cast(Any, function)
        function = inner.__func__ if isinstance(inner, types.MethodType) else inner.func
    return function


def _reached(function: Any, home: str) -> Iterator[tuple[str, Any]]:
    """What a callable reaches, by name."""
    if isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        yield "arguments", (partial.args, partial.keywords)
        yield from _reached(partial.func, home)
    elif isinstance(function, types.MethodType):
        yield from _reached(function.__func__, home)
        yield from _of_object(function.__self__, home)
    elif isinstance(function, types.FunctionType):
        yield from of_function(function, home)
    else:
        yield from _of_object(function, home)


def _of_object(value: Any, home: str) -> Iterator[tuple[str, Any]]:
    """Attributes of an object and of its classes, and what the methods reach."""
    for base in type(value).__mro__:
        if is_fixed(base.__module__, home):
            continue
        for name, member in vars(base).items():
            if isinstance(member, types.FunctionType):
                yield from of_function(member, home)
            elif not name.startswith("__"):
                yield f"{base.__qualname__}.{name}", member
    for name, held in state_of(value):
        yield f".{name}", held


def _code(kind: type) -> Hashable:
    """The code of the methods of a class, which may have been replaced since its objects were made."""
    return tuple(
        (name, member.__code__)
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, types.FunctionType)
    )


def _plain(value: Any, depth: int = 0) -> Hashable | None:
    """A number, a text, or a collection of such, with their types; None for anything else."""
    if isinstance(value, ATOMS):
        return atom(value)
    if isinstance(value, types.CellType):
        value = content_of(value)
    items: Any = value.items() if isinstance(value, dict) else value
    if depth > _DEEPEST or not isinstance(value, (tuple, list, set, frozenset, dict)):
        return None
    made = [_plain(item, depth + 1) for item in items]
    if None in made:
        return None
    return (type(value), frozenset(made) if isinstance(value, (set, frozenset)) else tuple(made))


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
