"""How results look at a prompt, in a notebook, on a terminal and in a pipe. Knows nothing of compilers."""

from __future__ import annotations

from lampwork.display.blocks import Block, Folded, Table, printable
from lampwork.display.pipes import run_for_reader
from lampwork.display.shown import Listing, Shown, cut
from lampwork.display.terminal import is_terminal, show

__all__ = [
    "Block",
    "Folded",
    "Listing",
    "Shown",
    "Table",
    "cut",
    "is_terminal",
    "printable",
    "run_for_reader",
    "show",
]
