"""Output for people who watch: tables of `rich` and lines that rewrite themselves, on terminals only."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from lampwork.display.blocks import Block, Folded, Table, printable


def is_terminal(stream: TextIO | None) -> bool:
    """Whether escape codes are welcome: never in pipes and files, and not where NO_COLOR or a dumb TERM says so."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def show(thing: object, stream: TextIO | None = None) -> None:
    """Print a result: with tables of `rich` on a terminal if that is installed, as plain text otherwise."""
    stream = sys.stdout if stream is None else stream
    if is_terminal(stream) and hasattr(thing, "__rich__") and importlib.util.find_spec("rich") is not None:
        importlib.import_module("rich.console").Console(file=stream).print(thing)
    else:
        print(printable(str(thing)), file=stream)


def to_rich(blocks: Iterable[Block]) -> Any:
    """Blocks as what `rich` prints. Text is text: nothing in it is read as rich's markup."""
    text: Any = importlib.import_module("rich.text").Text
    tables: Any = importlib.import_module("rich.table")
    found: list[Any] = []
    for block in blocks:
        match block:
            case Table():
                table = tables.Table(box=importlib.import_module("rich.box").SIMPLE_HEAD, pad_edge=False)
                for title in block.head:
                    table.add_column(text(title), overflow="fold")
                for row in block.rows:
                    table.add_row(*map(text, row))
                found.append(table)
            case Folded():
                found.append(text(f"{block.title}: {len(block.text.splitlines()):,} lines, in print()"))
            case str():
                found.append(text(block))
    return importlib.import_module("rich.console").Group(*found)
