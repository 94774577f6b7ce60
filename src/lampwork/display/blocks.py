"""What a result consists of when it is shown: lines of text, tables, and what is folded away until it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Not records: those know how things are shown, and this is part of that.


@dataclass(frozen=True, slots=True)
class Table:
    """`head`: the titles of the columns; each row has a cell for each. `str()` is the table with aligned columns."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return "\n".join(aligned((self.head, *self.rows)))


@dataclass(frozen=True, slots=True)
class Folded:
    """Text behind a title: in a notebook, a click opens it."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.title}\n{self.text}"


Block = str | Table | Folded


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines, with columns of one width. A cell is one line."""
    rows = [[" ".join(cell.splitlines()) if "\n" in cell else cell for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def printable(text: str) -> str:
    """With escapes for what would do something to a terminal, or cannot be written."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )
