"""A program for all sizes: compiled once, with numbers put in for its sizes when a call brings them. Numbers that are
no sizes are arguments of the programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lampwork.loops.ir.index import Index
from lampwork.records import record
from lampwork.runtime.layout import Layout
from lampwork.runtime.program import Program


@record
class SymbolicProgram:
    """What the native backend makes of a graph with symbols.

    The programs of all sizes share their machine code and one constant program (the same object).
    """

    layout: Layout

    @property
    def keys(self) -> frozenset[str]:
        """The symbols that a program is made for."""
        return self.layout.keys

    @property
    def scalars(self) -> tuple[Index, ...]:
        """The numbers that every such program takes with each call, in order."""
        return self.layout.scalars

    def without_scalars(self) -> SymbolicProgram:
        """The same with programs that are made for those numbers too."""
        layout = self.layout
        taken = frozenset[str]().union(*(index.symbols() for index in layout.scalars))
        return SymbolicProgram(replace(layout, keys=layout.keys | taken, scalars=()))

    def instantiate(self, values: Mapping[str, int], in_arena: bool = True) -> Program:
        """The program for these values of the keys: sizes and addresses only, no code is generated. `in_arena`: the
        CPU's values have their places in its arena.

        Raises:
            BackendError: a symbol has no value.
        """
        return self.layout.place(values, in_arena)
