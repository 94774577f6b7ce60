"""Blocks as HTML for notebooks: no scripts, no colours of its own, and no markup but what is written here.

All text goes through `text_of`, so a module that is called `<script>` is shown as that.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from lampwork.display.blocks import Block, Folded, Table

MOST_ROWS = 40
MOST_LINES = 40
MOST_CHARACTERS = 240
"""Of a table, of a text, and of a line or a cell: what goes beyond is counted instead."""

# Sizes and spaces only: colours, light or dark, are the notebook's.
_CELL = "text-align:left;vertical-align:top;padding:1px 10px 1px 0"
_TEXT = "margin:2px 0;white-space:pre-wrap;line-height:1.3"


def page(title: str, blocks: Iterable[Block]) -> str:
    """A title and its blocks, one below the other."""
    body = "".join(_block(block) for block in blocks)
    return f'<div class="lampwork"><b>{text_of(title)}</b>{body}</div>'


def text_of(text: str) -> str:
    """Text as HTML that says exactly that, in one line of bounded length."""
    line = " ".join(text.splitlines())
    if len(line) > MOST_CHARACTERS:
        line = f"{line[: MOST_CHARACTERS - 1]}…"
    # Names of files may hold what is no text, which no notebook can store.
    return html.escape(line.encode(errors="backslashreplace").decode())


def _block(block: Block) -> str:
    match block:
        case Table():
            return _table(block.head, block.rows)
        case Folded():
            return f"<details><summary>{text_of(block.title)}</summary>{_lines(block.text)}</details>"
        case str():
            return _lines(block)


def _lines(text: str) -> str:
    lines = text.splitlines()
    shown = [text_of(line) for line in lines[:MOST_LINES]]
    if len(lines) > MOST_LINES:
        shown.append(f"… and {len(lines) - MOST_LINES:,} more lines")
    return f'<pre style="{_TEXT}">' + "\n".join(shown) + "</pre>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [_row("th", head), *(_row("td", row) for row in rows[:MOST_ROWS])]
    if len(rows) > MOST_ROWS:
        rest = f"… and {len(rows) - MOST_ROWS:,} more"
        lines.append(f'<tr><td colspan="{len(head)}" style="{_CELL}">{rest}</td></tr>')
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{text_of(cell)}</{tag}>' for cell in cells) + "</tr>"
