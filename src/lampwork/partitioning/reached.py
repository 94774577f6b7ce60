"""The state that a value reaches, as something to compare, of as many objects as can be looked at quickly."""

from __future__ import annotations

import logging
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork.plugins.fingerprint import state_of
from lampwork.records import record
from lampwork.standard import functools

ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
MOST = 1000
"""So many objects are looked at, no more than 40 inside of each other."""

_FIXED = frozenset({*sys.stdlib_module_names, "torch", "lampwork"} - {"__main__"})

# Nothing in these is a setting: a logger reaches all others.
_CLOSED = (Tensor, types.ModuleType, types.BuiltinFunctionType, types.CodeType, logging.Logger)


class Unknown:
    """The state of something that reaches too much: equal to nothing, itself included."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return False


@record(eq=False)
class Here:
    """Equal for one and the same object as long as `value()` gives it: what can be referred to weakly is not kept."""

    value: Callable[[], Any]

    def __eq__(self, other: object) -> bool:
        mine = self.value()
        return isinstance(other, Here) and mine is not None and other.value() is mine

    def __hash__(self) -> int:
        return hash(Here)


def contents(value: Any, home: str) -> Hashable:
    """Equal as long as nothing that `value` reaches changes. `home`: the package of the author, whose functions and
    classes are looked into even if it is installed."""
    try:
        return _Walk(home).add(value, 0)
    except _TooMuch:
        return Unknown()


class _TooMuch(Exception):
    """There are more objects than are looked at."""


@dataclass(slots=True)
class _Walk:
    home: str
    seen: dict[int, int] = field(default_factory=dict[int, int])
    kept: list[Any] = field(default_factory=list[Any])  # so that no id is used twice

    def add(self, value: Any, depth: int) -> Hashable:
        if isinstance(value, ATOMS):
            return atom(value)
        if id(value) in self.seen:
            return ("again", self.seen[id(value)])
        if len(self.seen) >= MOST or depth > 40:
            raise _TooMuch
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        return (
            type(value).__name__,
            self._known(value),
            *(self.add(v, depth + 1) for v in self._inside(value)),
        )

    def _known(self, value: Any) -> Hashable:
        """What an object is, apart from what is inside."""
        if isinstance(value, Tensor):
            return (_here(value), None if value.is_inference() else value._version)
        if isinstance(value, (list, tuple, dict, set, frozenset, types.CellType, types.MethodType)):
            return None  # made anew each time, some of them
        return value.__name__ if isinstance(value, types.ModuleType) else _here(value)

    def _inside(self, value: Any) -> Iterator[Any]:
        if isinstance(value, (list, tuple)):
            yield from cast("list[Any]", value)
        elif isinstance(value, dict):
            for key, item in cast("dict[Any, Any]", value).items():
                yield key
                yield item
        elif isinstance(value, (set, frozenset)):
            yield from sorted(cast("set[Any]", value), key=repr)
        elif isinstance(value, types.CellType):
            yield from content_of(value)
        elif isinstance(value, types.MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, functools.partial):
            partial = cast("functools.partial[Any]", value)
            yield from (partial.func, partial.args, partial.keywords)
        elif isinstance(value, types.FunctionType):
            yield from (member for _, member in of_function(value, self.home))
        elif isinstance(value, nn.Module):
            yield from (value.training, *value.parameters(), *value.buffers())
        elif isinstance(value, type):
            if not is_fixed(value.__module__, self.home):
                yield from (m for n, m in vars(value).items() if not n.startswith("__"))
        elif not isinstance(value, _CLOSED):
            yield type(value)
            yield from (item for pair in state_of(value) for item in pair)


def atom(value: Any) -> Hashable:
    """A number or a text that tells -0.0 from 0.0 and 1 from True, and in which nan equals nan."""
    return (type(value), value.hex() if isinstance(value, float) else value)


def of_function(function: types.FunctionType, home: str) -> Iterator[tuple[str, Any]]:
    """What a function reaches, by name: code, defaults, what it closes over, globals that it names."""
    where = f"{function.__module__}.{function.__qualname__}"
    yield f"code of {where}", function.__code__
    yield f"defaults of {where}", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f"{name} in {where}", cell
    if is_fixed(function.__module__, home):
        return
    names = sorted({name for code in _codes(function.__code__) for name in code.co_names})
    for name in names:
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield f"{function.__module__}.{name}", value
        elif not is_fixed(value.__name__, home):
            yield from ((f"{value.__name__}.{n}", vars(value)[n]) for n in names if n in vars(value))


def content_of(cell: types.CellType) -> tuple[Any, ...]:
    """What a closure variable holds, if it has been assigned."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def is_fixed(module: str | None, home: str) -> bool:
    """Whether what a module holds is no setting of a backend: Python's, torch's, Lampwork's, another package's."""
    top = top_of(module)
    if top in _FIXED:
        return True
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return top != home and ("site-packages" in file or "dist-packages" in file)


def top_of(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _here(value: Any) -> Hashable:
    try:
        return Here(weakref.ref(value))
    except TypeError:  # an object of a class with slots
        return Here(lambda: value)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
