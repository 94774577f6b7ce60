"""`Shown`: what a result looks like where nobody asked for all of it.

An interactive prompt prints `repr()` of every result, a notebook `_repr_html_()`. Results hold graphs, guards and whole
models, so both are made here, and bounded here; `str()` is the report in full, and each result's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from lampwork.display.blocks import Block
from lampwork.display.html import page
from lampwork.display.terminal import to_rich

MOST = 200
"""Characters of the `repr` of one object."""

MOST_ITEMS = 20
"""Lines of the `repr` of a listing."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Shown:
    """Has a short `repr`, and a view for notebooks and for `rich.print`. A class says what is in them: `_brief`, one
    line, by default its fields; `_blocks`, by default `str()`; `_title`, of the view."""

    __slots__ = ()

    def _brief(self) -> str:
        return ", ".join(f"{name}={_value(value)}" for name, value in _fields(self))

    def _blocks(self) -> Iterable[Block]:
        return (str(self),)

    def _title(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        name = type(self).__name__
        return cut(f"{name}({self._brief()}", MOST - 1) + ")"

    def _repr_html_(self) -> str:
        return page(self._title(), self._blocks())

    def __rich__(self) -> Any:
        return to_rich(self._blocks())


Item = TypeVar("Item")


class Listing(Shown, tuple[Item, ...]):
    """A tuple whose `repr` is a line for each of its first items."""

    __slots__ = ()

    def _line(self, item: Item) -> str:
        return repr(item)

    def __repr__(self) -> str:
        lines = [cut(self._line(item), MOST) for item in self[:MOST_ITEMS]]
        if len(self) > MOST_ITEMS:
            lines.append(f"… and {len(self) - MOST_ITEMS:,} more")
        if len(lines) < 2:
            return f"({''.join(f'{line},' for line in lines)})"
        return "(\n" + "\n".join(f"  {line}" for line in lines) + "\n)"


def cut(text: str, most: int) -> str:
    """The text in one line of at most `most` characters; an ellipsis stands for the rest."""
    line = " ".join(text[: 2 * most].split())
    return line if len(line) <= most and len(text) <= 2 * most else f"{line[: most - 1]}…"


def _fields(shown: object) -> Iterable[tuple[str, Any]]:
    if not dataclasses.is_dataclass(shown):
        return ()
    return ((f.name, getattr(shown, f.name)) for f in dataclasses.fields(shown) if not f.name.startswith("_"))


def _value(value: Any) -> str:
    """A field in a few characters. Only what is known here is asked for its `repr`: others may be long or slow."""
    if type(value) in _PLAIN or isinstance(value, Shown):
        return cut(repr(value), 60)
    if isinstance(value, (str, Mapping, Sequence)):
        count = len(cast("Sequence[Any]", value))
        return f"<{count:,} item{'' if count == 1 else 's'}>"
    if isinstance(value, type):
        return value.__name__
    return f"<{type(value).__name__}>"
