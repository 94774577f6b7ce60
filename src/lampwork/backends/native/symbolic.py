"""A program for all sizes: compiled once, with numbers put in for its symbols when a call brings them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lampwork.backends.native.plan import Layout
from lampwork.runtime.program import Program


@dataclass(frozen=True, slots=True)
class SymbolicProgram:
    """What the native backend makes of a graph with symbols.

    The programs of all sizes share their machine code and one constant program (the same object).
    """

    layout: Layout
    symbols: frozenset[str]

    def instantiate(self, values: Mapping[str, int]) -> Program:
        """The program for these values of the symbols: sizes and addresses only, no code is generated.

        Raises:
            BackendError: a symbol has no value.
        """
        return self.layout.place(values)
