"""What of a backend makes a difference to what it compiles: part of the key under which that is kept."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork.backends.callable import CallableBackend
from lampwork.backends.protocol import Backend
from lampwork.plugins.fingerprint import content_hash, state_of
from lampwork.records import record
from lampwork.standard import functools

_ATOMS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)

_DEEPEST = 20
"""So many collections inside of each other are looked at: one may contain itself."""

# What compiling itself changed, such as counters, by class or by the code of a function: no settings.
_volatile: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()

# Whose globals are no settings.
_FIXED = frozenset({*sys.stdlib_module_names, "torch", "lampwork"} - {"__main__"})

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

    Of a function, a bound method or a callable object: everything, by content (tensors and modules, which are large: by
    identity and version): globals that its code names, what it
    closes over, its defaults, the attributes of its object. Of a backend's own class: attributes of the object and of
    its classes, and what the methods name or close over, where these are numbers, texts or collections of such; the
    state of other objects is not only settings (a list of the graphs seen).
    """
    ignored = _volatile.get(_owner(backend), ())
    by_content = isinstance(backend, CallableBackend)
    reached = _reached(backend.function) if by_content else _of_object(backend)
    found: dict[str, Hashable] = {}
    for name, value in reached:
        if name not in ignored and name not in found:
            held = _held(value) if by_content else _plain(value)
            if held is not None:
                found[name] = held
    return found


def note_changes(backend: Backend, before: Settings) -> None:
    """What differs from the `settings` of before it compiled is no setting."""
    now = settings(backend)
    changed = {name for name in (*now, *before) if now.get(name) != before.get(name)}
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


def _reached(function: Any) -> Iterator[tuple[str, Any]]:
    """What a callable reaches, by name."""
    if isinstance(function, functools.partial):
        partial = cast("functools.partial[Any]", function)
        yield "arguments", (partial.args, partial.keywords)
        yield from _reached(partial.func)
    elif isinstance(function, types.MethodType):
        yield from _reached(function.__func__)
        yield from _of_object(function.__self__)
    elif isinstance(function, types.FunctionType):
        yield from _of_function(function)
    else:
        yield from _of_object(function)


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of an object and of its classes, and what the methods reach."""
    for base in type(value).__mro__:
        if _is_fixed(base):
            continue
        for name, member in vars(base).items():
            if isinstance(member, types.FunctionType):
                yield from _of_function(member)
            elif not name.startswith("__"):
                yield f"{base.__qualname__}.{name}", member
    for name, held in state_of(value):
        yield f".{name}", held


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    where = f"{function.__module__}.{function.__qualname__}"
    yield f"defaults of {where}", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"{name} in {where}", _content(cell)
    if _is_fixed(function):
        return
    names = sorted({name for code in _codes(function.__code__) for name in code.co_names})
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield f"{function.__module__}.{name}", value
        elif _top(value.__name__) not in _FIXED:
            yield from ((f"{value.__name__}.{n}", vars(value)[n]) for n in names if n in vars(value))


def _is_fixed(value: Any) -> bool:
    """Whether a class or function is of Python, torch or Lampwork: what it reaches there is no setting of a backend."""
    return _top(value.__module__ or "") in _FIXED


def _top(module: str) -> str:
    return module.partition(".")[0]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


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
    if isinstance(value, float):
        return (type(value), value.hex())  # tells -0.0 from 0.0, and nan equals nan
    if isinstance(value, _ATOMS):
        return (type(value), value)
    if depth > _DEEPEST:
        return None
    items: Any = value.items() if isinstance(value, dict) else value
    if not isinstance(value, (tuple, list, set, frozenset, dict)):
        return None
    made = [_plain(item, depth + 1) for item in items]
    if None in made:
        return None
    return (type(value), frozenset(made) if isinstance(value, (set, frozenset)) else tuple(made))


def _held(value: Any) -> Hashable:
    """Equal as long as a value that a function reaches does not change."""
    if isinstance(value, nn.Module):
        tensors = (*value.parameters(), *value.buffers())
        return (_Here(weakref.ref(value)), value.training, tuple(map(_held, tensors)))
    if isinstance(value, Tensor) and not value.is_inference():
        return (_Here(weakref.ref(value)), value._version)
    return content_hash(value)


def _who(backend: Backend) -> Hashable:
    try:
        hash(backend)
    except TypeError:
        return _Same(backend)
    return backend


@record(eq=False)
class _Here:
    """Equal for one and the same living object, which it does not keep."""

    value: weakref.ref[Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Here) and self.value() is not None and other.value() is self.value()

    def __hash__(self) -> int:
        return hash(_Here)


@record(eq=False)
class _Same:
    """Equal for one and the same object only, which it keeps."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
