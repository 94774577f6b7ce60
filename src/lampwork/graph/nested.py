"""Values in nested tuples, lists and dicts, as the arguments and results of operators are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

T = TypeVar("T")


def leaves(value: Any, kind: type[T]) -> Iterator[T]:
    """The values of this kind, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in cast("list[Any]", value):
            yield from leaves(item, kind)
    elif isinstance(value, dict):
        for item in cast("dict[Any, Any]", value).values():
            yield from leaves(item, kind)


def replaced(value: Any, kind: type[T], make: Callable[[T], Any]) -> Any:
    """`value` with what `make` makes of each value of this kind."""
    if isinstance(value, kind):
        return make(value)
    if isinstance(value, (tuple, list)):
        items = [replaced(item, kind, make) for item in cast("list[Any]", value)]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: replaced(item, kind, make) for key, item in cast("dict[Any, Any]", value).items()}
    return value
