"""Iteration and length, and what native code may have in place of the values of a region.

Native code that walks an object of a Python class gets an `Walked` in its place: asked for an iterator, an item or a
length, it asks the interpreter. So the methods of the class are called when, and as often as, native code calls them.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.values import PLAIN, Generator, Lazy, StandsFor
from lampwork.capture.semantics.attributes import MISSING
from lampwork.capture.semantics.held_state import read_state
from lampwork.capture.semantics.symbolic import fixed
from lampwork.capture.state.enumerations import guard_enumeration
from lampwork.capture.state.treatment import is_unchanging
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# Called with each item that native code takes.
Check = Callable[[Any], None]


def class_of(interp: Interpreter, value: Any) -> type:
    """The class whose special methods Python asks for; of a symbolic number that of torch, which has them."""
    return interp.environment.python_type(value) if type(value) is TraceTensor else type(value)


def special_method(interp: Interpreter, value: Any, name: str) -> types.FunctionType | None:
    return interp.python_method(class_of(interp, value), name)


def native_view(interp: Interpreter, value: Any) -> Any:
    """An object as native code may have it that only reads: what it looks at is guarded.

    Raises:
        Break: LW111: it would read state of an outside object that no guard sees.
    """
    kind = type(value)
    if kind is types.MappingProxyType:
        return interp.environment.behind(value)
    entry = interp.environment.owner(value)
    if entry is None or interp.environment.shadows.stands_in(value):
        return value
    if hasattr(kind, "__next__"):
        raise Break("LW111", f"{entry.name} is an iterator made outside of the region")
    if kind is types.SimpleNamespace:
        read_state(interp, value)
    elif not (kind in PLAIN or is_unchanging(kind) or isinstance(value, tuple)):
        raise Break("LW111", f"{entry.name} is a {kind.__name__}, whose content no guard sees")
    return value


def native_operand(interp: Interpreter, value: Any, name: str) -> Any:
    """As `native_view`, for an operator: it asks an object for its special method `name`."""
    kind = type(value)
    if kind in PLAIN or (interp.environment.entry(value) is None and kind is not types.MappingProxyType):
        return value
    found, owner = interp.lookup(kind, name)
    if found is MISSING or owner is object or type(found) is types.FunctionType:
        return value
    return native_view(interp, value)


def length(interp: Interpreter, value: Any) -> int:
    """len(value)."""
    method = special_method(interp, value, "__len__")
    if method is not None:
        result = interp.call(method, [value], {})
        if isinstance(result, int) and result < 0:
            raise ValueError("__len__() should return >= 0")
        return cast(int, result)
    return len(native_view(interp, value))


def get_iter(interp: Interpreter, value: Any) -> Iterator[Any]:
    """iter(value)."""
    kind = type(value)
    method = special_method(interp, value, "__iter__") if kind is TraceTensor else None
    if method is None and (kind in PLAIN or kind is Generator):
        return iter(value)
    if isinstance(value, (enum.EnumType, enum.Flag)):
        guard_enumeration(interp.environment, value)
        return iter(list(cast("Iterable[Any]", value)))
    method = special_method(interp, value, "__iter__")
    if method is not None:
        return cast("Iterator[Any]", interp.call(method, [value], {}))
    if is_foreign_iterator(interp, value):
        return value
    if kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        raise Break("LW108", "the iterable")
    if is_iterated_by_index(interp, kind):
        return cast("Iterator[Any]", interp.call_python(items_by_index, [value], {}))
    return iter(native_view(interp, value))


def is_foreign_iterator(interp: Interpreter, value: Any) -> bool:
    """Whether this is an iterator made outside of the region whose items native code gives: looking at them would use
    them up, so they are taken in plain Python."""
    real: Any = value.value if type(value) is Lazy else value
    kind = type(real)
    if kind in PLAIN or not hasattr(kind, "__next__") or interp.python_method(kind, "__next__") is not None:
        return False
    return type(value) is Lazy or interp.environment.entry(value) is not None


def is_iterated_by_index(interp: Interpreter, kind: type) -> bool:
    """Whether iter() of an instance reads `__getitem__`, which is Python, for want of `__iter__`."""
    return (
        interp.python_method(kind, "__getitem__") is not None
        and interp.lookup(kind, "__iter__")[0] is MISSING
    )


def items_by_index(items: Any) -> Iterator[Any]:
    """What iterating an object gives that has `__getitem__` only. Interpreted, never run as it stands."""
    i = 0
    while True:
        try:
            item = items[i]
        except (IndexError, StopIteration):
            return
        yield item
        i += 1


def next_item(interp: Interpreter, iterator: Any) -> Any:
    """next(iterator).

    Raises:
        StopIteration: it is exhausted.
    """
    kind = type(iterator)
    if kind is not Generator:
        method = interp.python_method(kind, "__next__")
        if method is not None:
            return interp.call(method, [iterator], {})
        if kind is types.GeneratorType or interp.environment.entry(iterator) is not None:
            raise Break("LW108", "the iterator")
    return next(iterator)


def iterate(interp: Interpreter, value: Any) -> Iterator[Any]:
    """The items of any iterable of the region."""
    yield from walk(interp, get_iter(interp, value))


def walk(interp: Interpreter, iterator: Any) -> Iterator[Any]:
    while True:
        try:
            item = next_item(interp, iterator)
        except StopIteration:
            return
        yield item


class _Sized(StandsFor):
    """What native code may ask for a length, or a guess at it, as it may ask the object behind."""

    __slots__ = ("interpreter",)

    def __init__(self, interpreter: Interpreter, value: Any) -> None:
        super().__init__(value)
        self.interpreter = interpreter

    def __len__(self) -> int:
        kind = type(self.value)
        if self.interpreter.lookup(kind, "__len__")[0] is MISSING:
            raise TypeError(f"object of type {kind.__name__!r} has no len()")
        return cast(int, fixed(length(self.interpreter, self.value)))

    def __length_hint__(self) -> Any:
        found, _ = self.interpreter.lookup(type(self.value), "__length_hint__")
        if found is MISSING:
            return NotImplemented
        return fixed(self.interpreter.call(found, [self.value], {}))


class Walked(_Sized):
    """An object as native code sees it that walks over its items: `check` is called with each."""

    __slots__ = ("check",)

    def __init__(self, interpreter: Interpreter, value: Any, check: Check | None = None) -> None:
        super().__init__(interpreter, value)
        self.check = check

    def __iter__(self) -> Iterator[Any]:
        iterator = get_iter(self.interpreter, self.value)
        in_python = self.interpreter.python_method(type(iterator), "__next__") is not None
        if type(iterator) is Generator and self.check is None:
            return iterator
        if in_python or self.check is not None or is_foreign_iterator(self.interpreter, iterator):
            return NativeIterator(self.interpreter, iterator, self.check)
        return iterator


class NativeIterator(Walked):
    """An iterator as native code sees it."""

    __slots__ = ()
    is_begun = True

    def __next__(self) -> Any:
        item = next_item(self.interpreter, self.value)
        if self.check is not None:
            self.check(item)
        return item


class Numbered(_Sized):
    """A sequence of a Python class as native code sees it that reads its items by number."""

    __slots__ = ()
    is_begun = True

    def __getitem__(self, index: int) -> Any:
        found, _ = self.interpreter.lookup(type(self.value), "__getitem__")
        return self.interpreter.call(found, [self.value, index], {})


def native_iterable(interp: Interpreter, value: Any) -> Any:
    """An iterable that native code may walk."""
    kind = type(value)
    replaced = kind is TraceTensor and special_method(interp, value, "__iter__") is not None
    if not replaced and (kind in PLAIN or kind is Generator or issubclass(kind, StandsFor)):
        return value
    by_index = is_iterated_by_index(interp, kind) and interp.lookup(kind, "keys")[0] is MISSING
    in_python = special_method(interp, value, "__iter__") is not None
    if in_python or interp.python_method(kind, "__next__") is not None or by_index:
        return Walked(interp, value)
    return native_view(interp, value)


def native_iterator(interp: Interpreter, iterator: Any) -> Any:
    """An iterator that native code may walk."""
    if interp.python_method(type(iterator), "__next__") is not None or is_foreign_iterator(interp, iterator):
        return NativeIterator(interp, iterator)
    return iterator
