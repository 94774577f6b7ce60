"""Operands: taken from the stack, and read no further than an instruction needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork.capture.model.errors import Earlier
from lampwork.capture.model.frame import Frame
from lampwork.capture.model.region import Unwritten
from lampwork.capture.model.values import CONSTANTS, NULL, Lazy
from lampwork.capture.semantics.iteration import (
    Numbered,
    get_iter,
    is_iterated_by_index,
    iterate,
    native_iterable,
)
from lampwork.capture.semantics.mappings import plain_mapping
from lampwork.capture.semantics.protocols import check_decimals, get_item
from lampwork.capture.state.effects import Effect
from lampwork.errors import DataDependentError
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Handler = Callable[["Interpreter", Frame, Any], Any]


def use(interp: Interpreter, frame: Frame) -> Any:
    """Pop a value that is going to be used."""
    value = frame.stack.pop()
    return interp.force(value) if type(value) is Lazy else value


def use_many(interp: Interpreter, frame: Frame, count: int) -> list[Any]:
    return [interp.force(v) if type(v) is Lazy else v for v in frame.pop_many(count)]


def none_test(interp: Interpreter, value: Any) -> Any:
    """A value as `is None` needs it: only whether it is None is guarded, nothing is lifted or read."""
    if type(value) is not Lazy:
        return value
    if value.value is None:
        return interp.force(value)
    interp.guards.add(value.source, "type", type(value.value))
    return value.value


def begun(interp: Interpreter, frame: Frame, depth: int) -> Any:
    """The display under construction at this depth of the stack, to be added to.

    If a graph break came in the middle of it, it arrives as an argument; nothing else refers to it, so a copy stands
    for it.
    """
    target = frame.stack[-depth]
    if type(target) is Lazy:
        made = interp.force(target)
        items = iterate(interp, made)
        is_dict = isinstance(made, dict)
        target = {key: get_item(interp, made, key) for key in items} if is_dict else type(made)(items)
        frame.stack[-depth] = target
    return target


def added_later(interp: Interpreter, frame: Frame, depth: int, add: Callable[..., Any], *values: Any) -> bool:
    """Whether the display of a comprehension came across a graph break, so that it is added to when the region is done.

    In a frame of its own a comprehension does nothing with its display but return it. So it stays unread, and the
    iterations of a comprehension that breaks share a region.
    """
    target = frame.stack[-depth]
    if type(target) is not Lazy or frame.decoded.code.co_name not in _COMPREHENSIONS:
        return False
    interp.effects.calls.append(Effect(add, (target, *values)))
    return True


_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})


def unpacked(interp: Interpreter, value: Any) -> Iterator[Any]:
    """An iterator over what is on the right of `a, b = value`.

    Raises:
        TypeError: it cannot be iterated.
    """
    kind = type(value)
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise TypeError(f"cannot unpack non-iterable {kind.__name__} object")
    if is_iterated_by_index(interp, kind):
        return iter(cast("Iterator[Any]", Numbered(interp, value)))
    return get_iter(interp, value)


def star_arguments(interp: Interpreter, frame: Frame, has_mapping: bool) -> tuple[list[Any], dict[str, Any]]:
    """Pop what `*` and `**` give to a call: an iterable and, on top of it, perhaps a mapping."""
    kwargs = plain_mapping(interp, use(interp, frame)) if has_mapping else {}
    items = use(interp, frame)
    kind = type(items)
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        name = called_name(interp, frame, 1)
        raise TypeError(f"{name} argument after * must be an iterable, not {kind.__name__}")
    return list(native_iterable(interp, items)), dict(kwargs)


def called_name(interp: Interpreter, frame: Frame, depth: int) -> str:
    """What CPython calls a function whose arguments it refuses; the function lies this deep in the stack, or, in 3.13,
    below NULL."""
    function = interp.force(next(v for v in frame.stack[-depth::-1] if v is not NULL))
    name = getattr(function, "__qualname__", None)
    if name is None:
        return interp.call(str, [function], {})
    home = function.__module__
    return f"{name}()" if home in (None, "builtins") else f"{home}.{name}()"


def annotations_of(value: Any) -> dict[str, Any]:
    """The annotations of a function: a dict, or names and values in turn."""
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    flat = cast(tuple[Any, ...], value)
    return dict(zip(flat[::2], flat[1::2], strict=True))


# What native code takes from special methods; it refuses the rest, in words of its Python version.
_TAKEN: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "__str__": (str, str),
    "__repr__": (str, repr),
    "__format__": (str, format),
    "__bytes__": (bytes, bytes),
    "__complex__": (complex, complex),
    "__hash__": (int, hash),
}


def taken(name: str, value: Any, result: Any) -> Any:
    """What the special method `name` of `value` returned, if native code would take it.

    Raises:
        TypeError: it would not.
    """
    kind, native = _TAKEN.get(name, (object, None))
    if native is None or isinstance(result, kind):
        return result
    return native(type(type(value).__name__, (), {name: lambda *_: result})())


def text_of(
    interp: Interpreter, value: Any, write: Callable[[], Any], spec: str = "", *, converted: bool = False
) -> Any:
    """What `write` gives, a text of the value. That of a tensor shows its data, which exists only at run time: it is
    left unwritten, and whoever looks into it ends the region before this instruction. Most such texts are messages of
    errors that do not come. `spec`: that of its format, which eager may refuse. `converted`: it is one of a text."""
    if type(value) is not TraceTensor:
        return write()
    try:
        return write()
    except DataDependentError as error:
        stop = Earlier("LW102", error.cause, interp.frames[0].steps)
    stop.at(interp.user_location(), len(interp.frames))
    if not _is_format(spec, "" if converted else _stand_in(interp, value)):
        raise stop
    return Lazy("", Unwritten(stop, "a text of a tensor"), "a text of a tensor")


def reformatted(interp: Interpreter, text: Lazy, spec: str) -> Lazy:
    """An unwritten text in a format."""
    if not _is_format(spec, ""):
        interp.force(text)
    return text


def _stand_in(interp: Interpreter, tensor: TraceTensor) -> object:
    """What has the formats of a tensor: those of a number, if it is one, and no parameter; else none."""
    if tensor.spec.shape or interp.environment.python_type(tensor) is not torch.Tensor:
        return _NO_NUMBER
    dtype = tensor.spec.dtype
    if dtype is torch.bool:
        return True
    return 1j if dtype.is_complex else 0.5 if dtype.is_floating_point else 1


_NO_NUMBER = object()


def _is_format(spec: Any, value: Any) -> bool:
    """Whether every value like this one has that format. That of a character goes by the number."""
    if type(spec) is not str or spec.endswith("c"):
        return False
    try:
        format(value, spec)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def is_unwritten(value: Any) -> bool:
    """Whether this is a text that `text_of` left unwritten."""
    return type(value) is Lazy and type(value.source) is Unwritten


def joined(interp: Interpreter, parts: list[Any]) -> Any:
    """The texts in one, unwritten if one of them is."""
    for part in parts:
        if is_unwritten(part):
            return part
    return "".join([interp.force(part) for part in parts])


def format_value(interp: Interpreter, value: Any, spec: str) -> str:
    """format(value, spec)."""
    kind = type(value)
    if kind in CONSTANTS:
        return format(value, spec)
    method, (_, owner) = interp.python_method(kind, "__format__"), interp.lookup(kind, "__format__")
    if method is not None:
        return taken("__format__", value, interp.call(method, [value, spec], {}))
    if not spec and (owner is object or kind is TraceTensor):
        return interp.call(str, [value], {})
    check_decimals("format()", value)
    return format(value, spec)
