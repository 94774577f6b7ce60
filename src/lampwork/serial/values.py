"""Parts of the serial form: JSON as text, and its values with their checks on reading.

Every function that reads raises SerialError for what is not of the form: what was expected, and what came.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast

import torch

from lampwork.errors import SerialError
from lampwork.literals import literal_text, nan_of_text
from lampwork.standard import functools, math

T = TypeVar("T")

DEEPEST = 300
"""How deep lists, indices and floats that Python computes may nest."""
INT64 = range(-(2**63), 2**63)
_MOST = range(-(2**63), 2**64)
_shown = reprlib.Repr()


def to_text(value: Any) -> bytes:
    """The one text of a JSON value: equal values give equal bytes. Keys keep their order."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def from_text(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise SerialError(f"JSON was expected: {type(error).__name__}: {error}") from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def expected(what: str, value: Any) -> SerialError:
    """The error that says what was expected and what came."""
    return SerialError(
        f"{what} was expected, not {_shown.repr(value)}",
        fix="make the file again: this one is damaged, or was written by another version",
    )


def inside(where: str, read: Callable[[], T]) -> T:
    """What `read` gives; its errors say where."""
    try:
        return read()
    except SerialError as error:
        raise SerialError(f"{where}: {error.cause}", fix=error.fix) from error


def each(where: str, values: Any, read: Callable[[Any], T]) -> tuple[T, ...]:
    """What `read` makes of each value of a list; its errors say of which."""
    given, found = items(values), list[T]()
    try:
        for value in given:
            found.append(read(value))
    except SerialError as error:
        raise SerialError(f"{where}[{len(found)}]: {error.cause}", fix=error.fix) from error
    return tuple(found)


def items(value: Any, count: int | None = None) -> list[Any]:
    if type(value) is not list or (count is not None and len(cast("list[Any]", value)) != count):
        raise expected("a list" if count is None else f"a list of {count}", value)
    return cast("list[Any]", value)


def mapping(value: Any, needed: frozenset[str], optional: frozenset[str] = frozenset()) -> dict[str, Any]:
    """A JSON object with these keys and no others."""
    if type(value) is not dict:
        raise expected("an object", value)
    found = cast("dict[str, Any]", value)
    if found.keys() == needed:  # as most have
        return found
    if missing := needed - found.keys():
        raise expected(f"an object with {', '.join(sorted(missing))}", sorted(found))
    if more := found.keys() - needed - optional:
        raise expected(f"an object of {', '.join(sorted(needed | optional))}", sorted(more))
    return found


def only(value: Any, what: str) -> tuple[str, Any]:
    """Key and value of an object that has one key."""
    if type(value) is not dict or len(cast("dict[str, Any]", value)) != 1:
        raise expected(what, value)
    return next(iter(cast("dict[str, Any]", value).items()))


def whole(value: Any, within: range = INT64, what: str = "") -> int:
    if type(value) is not int or value not in within:
        raise expected(what or _range_text(within), value)
    return value


def _range_text(within: range) -> str:
    if within is INT64:
        return "a whole number of 64 bits"
    if within.stop <= within.start:
        return "no number"
    return f"a whole number from {within.start} to {within.stop - 1}"


def text(value: Any) -> str:
    if type(value) is not str:
        raise expected("a text", value)
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise expected("true or false", value)
    return value


def one_of(value: Any, names: frozenset[str]) -> str:
    if type(value) is not str or value not in names:
        raise expected(f"one of {', '.join(sorted(names))}", value)
    return value


@functools.cache
def dtypes() -> Mapping[str, torch.dtype]:
    """torch's dtypes by the names of the form."""
    found = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return MappingProxyType({name.removeprefix("torch."): value for name, value in found.items()})


def dtype_to_json(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_from_json(value: Any) -> torch.dtype:
    found = dtypes().get(value) if type(value) is str else None
    if found is None:
        raise expected("the name of a dtype", value)
    return found


def device_from_json(value: Any) -> torch.device:
    try:
        return torch.device(text(value))
    except RuntimeError as error:
        raise expected("the name of a device", value) from error


_NOT_FINITE: Mapping[str, float] = MappingProxyType({"nan": math.nan, "inf": math.inf, "-inf": -math.inf})


def float_to_json(value: float) -> Any:
    """A float as it is, {"f": ...} where it is not finite: a nan other than `math.nan` by its bits."""
    if math.isfinite(value):
        return value
    return {"f": literal_text(value)}


def float_from_json(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    key, name = only(value, "a float")
    if key != "f" or type(name) is not str:
        raise expected("a float", value)
    if name in _NOT_FINITE:
        return _NOT_FINITE[name]
    try:
        return nan_of_text(name)
    except ValueError as error:
        raise expected("a float", value) from error


_TORCH_NAMES: Mapping[str, type] = MappingProxyType(
    {"layout": torch.layout, "memory_format": torch.memory_format}
)


def plain_to_json(value: Any) -> Any:
    """A value without parts, as arguments of operators are.

    Raises:
        SerialError: it has no serial form.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if value not in _MOST:
            raise SerialError(f"the number {value} has more than 64 bits, and no serial form")
        return value
    if kind is float:
        return float_to_json(value)
    if kind is str:
        return {"s": value}
    if kind is complex:
        return {"complex": [float_to_json(value.real), float_to_json(value.imag)]}
    if kind is torch.dtype:
        return {"dtype": dtype_to_json(value)}
    if kind is torch.device:
        return {"device": str(value)}
    for name, of_torch in _TORCH_NAMES.items():
        if kind is of_torch:
            return {name: str(value).removeprefix("torch.")}
    raise SerialError(f"a {kind.__module__}.{kind.__qualname__} has no serial form")


def plain_from_json(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return whole(value, _MOST)
    if kind is float:
        return float_from_json(value)
    key, inner = only(value, "an argument")
    if key == "f":
        return float_from_json(value)
    if key == "s":
        return text(inner)
    if key == "complex":
        return complex(*map(float_from_json, items(inner, 2)))
    if key == "dtype":
        return dtype_from_json(inner)
    if key == "device":
        return device_from_json(inner)
    if key in _TORCH_NAMES:
        found = getattr(torch, text(inner), None) if inner.isidentifier() else None
        if isinstance(found, _TORCH_NAMES[key]):
            return found
    raise expected("an argument", value)
