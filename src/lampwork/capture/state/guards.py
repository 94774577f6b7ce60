"""`GuardBuilder`: the conditions a region rests on, each noted once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, cast

from lampwork.capture.model.region import (
    CellContents,
    DictItem,
    Guard,
    GuardKind,
    Known,
    Slot,
    Source,
    Unwritten,
)
from lampwork.errors import Location

# The kinds whose expected values are the same where they are equal.
_BY_VALUE = frozenset({"same", "distinct", "storage_distinct", "missing_key", "predicate"})
# What a known object holds at a place of its own. Cells of numbers are left out, since those are often written to.
_POINTERS: dict[GuardKind, tuple[type[CellContents] | type[Slot], ...]] = {
    "is": (CellContents, Slot),
    "equals": (Slot,),
}


class GuardBuilder:
    """`fast` guards are checked on every call. `slow` ones are checked only if one of the `versioned` dicts changed:
    whatever they look at is reached from known objects through those dicts alone.

    `line` gives the user's line for printing; it is asked once per guard.
    """

    def __init__(self, line: Callable[[], Location | None] = lambda: None) -> None:
        self.fast: list[Guard] = []
        self.slow: list[Guard] = []
        self.versioned: dict[int, Known] = {}
        self.line = line
        self._seen: set[tuple[Any, ...]] = set()

    def add(self, source: Source, kind: GuardKind, expected: Any = None, *, slow: bool = False) -> None:
        """Note a guard, unless the same one is there already.

        `slow` goes without saying where a pointer at a known place tells of every change.
        """
        if type(source) is Unwritten:
            raise source.value
        subject = expected if kind in _BY_VALUE else id(expected)
        key = (_place(source), kind, subject)
        if key in self._seen:
            return
        self._seen.add(key)
        if not slow and (pointers := _POINTERS.get(kind)) is not None and isinstance(source, pointers):
            slow = isinstance(source.base, Known)
        (self.slow if slow else self.fast).append(Guard(source, kind, expected, self.line()))

    def again(self, value: Any, source: Source, first: Source | None, *, slow: bool) -> None:
        """Note that a tensor was found that came before: from `first`, or bound where that is None."""
        if first is None:
            self.add(source, "is", value, slow=slow)
        elif source != first:
            self.add(source, "same", first)

    def version(self, table: dict[Any, Any], name: str) -> Known:
        """The source of a dict that slow guards look into."""
        source = self.versioned.get(id(table))
        if source is None:
            source = self.versioned[id(table)] = Known(table, name)
        return source


def _place(source: Source) -> Any:
    """A source as a key. What it compares by is read off at once for the sources that most guards are on: hashing calls
    no Python."""
    kind = type(source)
    if kind is Known:
        return id(source.value)  # pyright: ignore
    if kind is DictItem and type(source.base) is Known:  # pyright: ignore
        return id(source.base.value), source.key  # pyright: ignore
    return source


def mapping_behind(proxy: Any) -> dict[Any, Any]:
    """The dict that a mappingproxy shows."""
    return cast("dict[Any, Any]", gc.get_referents(proxy)[0])
