"""The arguments of ATen calls as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import FloatOfBits
from lampwork.runtime.program import Ref
from lampwork.serial.indices import index_from_json, index_to_json
from lampwork.serial.values import DEEPEST, expected, items, only, plain_from_json, plain_to_json, whole


def nested_to_json(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """A value with lists and tuples, whose other parts are written by `leaf`."""
    if isinstance(value, list):
        return {"l": [nested_to_json(item, leaf) for item in cast("list[Any]", value)]}
    if isinstance(value, tuple):
        return {"t": [nested_to_json(item, leaf) for item in cast("tuple[Any, ...]", value)]}
    return leaf(value)


def nested_from_json(value: Any, leaf: Callable[[Any], Any], depth: int = 0) -> Any:
    """The value that `nested_to_json` wrote."""
    key = next(iter(cast("dict[str, Any]", value)), "") if type(value) is dict else ""
    if key not in ("l", "t"):
        return leaf(value)
    if depth > DEEPEST:
        raise expected(f"lists that are no deeper than {DEEPEST}", value)
    found = [nested_from_json(item, leaf, depth + 1) for item in items(only(value, "a list")[1])]
    return found if key == "l" else tuple(found)


def argument_to_json(value: Any) -> Any:
    """An argument of a `CallAten` or an `AtenStep`."""
    return nested_to_json(value, _leaf_to_json)


def _leaf_to_json(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.value}
    if isinstance(value, Index):
        return {"i": index_to_json(value)}
    if isinstance(value, FloatOfBits):
        return {"bits": index_to_json(value.bits)}
    return plain_to_json(value)


def argument_from_json(value: Any, n_values: int) -> Any:
    """The argument, of a program with so many values."""

    def number(value: Any) -> int:
        return whole(value, range(n_values))

    return nested_from_json(value, lambda leaf: argument_leaf_from_json(leaf, number))


def argument_leaf_from_json(value: Any, number: Callable[[Any], int]) -> Any:
    """An argument without parts. `number`: reads that of a value of the program."""
    if type(value) is dict:
        key, inner = only(value, "an argument")
        if key == "ref":
            return Ref(number(inner))
        if key == "i":
            return index_from_json(inner)
        if key == "bits":
            return FloatOfBits(index_from_json(inner))
    return plain_from_json(value)
