"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a table; `|` inside a cell is escaped, and there is a blank line before."""
    titles = list(head)
    lines = [titles, ["---", *("---:" for _ in titles[1:])], *map(list, rows)]
    return [f"| {' | '.join(map(_escaped, line))} |" for line in lines]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
