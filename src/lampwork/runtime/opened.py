"""Regions that are trained with sizes left open: compiled once, with numbers put in when a call brings them.

A new tuple of sizes costs a memory plan of forward and one of each backward, and no compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from lampwork.differentiation.joint import Asked
from lampwork.differentiation.saved import Savings
from lampwork.differentiation.split import Given
from lampwork.graph.symbols import Condition, SymbolicFloat, bits_of_float
from lampwork.records import record
from lampwork.runtime.opaque import opaque
from lampwork.runtime.trained import Awaited, CompiledBackward, Run, Trained
from lampwork.standard import struct

MakeRun = Callable[[Mapping[str, int]], Run]
"""Values of symbols -> the program for them."""

MOST_OPEN = 64
"""For how many values of its numbers a region that takes them as arguments keeps its programs."""


@record
class OpenBackward:
    """As `CompiledBackward`, for all sizes."""

    make: MakeRun
    inputs: tuple[Given, ...]
    gradients: tuple[int, ...]
    asked: Asked

    def at(self, values: Mapping[str, int]) -> CompiledBackward:
        program = self.make(values)
        return CompiledBackward(Awaited(lambda: program), self.inputs, self.gradients, self.asked.at(values))


@record
class Opened:
    """As `Trained`, for all sizes on which the `conditions` hold: what was asked of them after the region's own guards
    were settled. `computed`: floats that the programs read, by the names of their bits."""

    make: MakeRun
    given: tuple[int, ...]
    n_results: int
    exposed: Mapping[fx.Node, int]
    backwards: Mapping[int, OpenBackward]
    savings: Savings
    conditions: tuple[Condition, ...]
    computed: Mapping[str, SymbolicFloat]

    def at(self, numbers: Mapping[str, int]) -> Trained | None:
        """What trains the region for these values of its symbols; None if it is not made for them."""
        try:
            if not all(condition.holds(numbers) for condition in self.conditions):
                return None
            floats = {name: bits_of_float(number.evaluate(numbers)) for name, number in self.computed.items()}
        except (ArithmeticError, ValueError, TypeError, KeyError, struct.error):
            return None  # a symbol that no size tells, or the program's own arithmetic fails
        values = {**numbers, **floats}
        backwards = {number: backward.at(values) for number, backward in self.backwards.items()}
        return Trained(self.make(values), self.given, self.n_results, self.exposed, backwards)


BuildOpen = Callable[[Any, Mapping[int, Asked], Mapping[str, int], Savings | None], "Opened | None"]
"""(rerun of the graph with its symbols, what is asked of each segment, on a call with these values of the symbols, what
eager saved on that call) -> what trains the region for all of them; None if it cannot be had."""


@dataclass(eq=False)
class Later:
    """A program that is made by its first call."""

    make: Callable[[], Callable[..., Sequence[Tensor]]]
    _made: Callable[..., Sequence[Tensor]] | None = field(default=None, init=False)

    @opaque
    def __call__(self, *given: Any) -> Sequence[Tensor]:
        if self._made is None:
            self._made = self.make()
        return self._made(*given)
