"""How much Python a capture may interpret without an operator: interpreting is hundreds of times as slow as running.

Counted are loops, by the instructions from their first to the jump back, and calls. The account is looked at once in a
while, so that it costs ordinary captures next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lampwork.capture.model.errors import Break, FrameRefused, TooLong

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

CALL = 20
"""What a call of a Python function counts, in instructions."""

_MOST = 100_000  # instructions without an operator, about a third of a second
_MOST_CONDITIONS = 100  # on open numbers, meanwhile: a loop is unrolled that a number bounds
_STRIDE = 500  # instructions between two looks


class Conditional(Break):
    """A loop puts ever more conditions on an open number. The region is captured again, with numbers."""

    def __init__(self) -> None:
        super().__init__("LW122", "a loop")


@dataclass(slots=True)
class Effort:
    """The account of one capture. `since`: the instruction of the root frame where the last operator was seen."""

    spent: int = 0
    quiet: int = 0
    since: int = 0
    in_call: int = 0
    _nodes: int = 0
    _conditions: int = 0
    _step: int = 0

    def spend(self, interp: Interpreter, effort: int) -> None:
        """Note that so many instructions were interpreted.

        Raises:
            Break, FrameRefused: too many were, and what they compute is left to Python.
        """
        self.spent += effort
        if self.spent > _STRIDE:
            self._look(interp)

    def _look(self, interp: Interpreter) -> None:
        spent, self.spent = self.spent, 0
        nodes, conditions = len(interp.recorder.graph.nodes), len(interp.recorder.scope.conditions)
        step = interp.frames[0].steps
        if nodes != self._nodes:
            self._nodes, self._conditions, self.quiet, self.since = nodes, conditions, 0, step
        else:
            self.quiet += spent
        self.in_call = spent + (self.in_call if step == self._step else 0)
        self._step = step
        if conditions - self._conditions > _MOST_CONDITIONS:
            raise Conditional
        if self.quiet > _MOST:
            self._give_up(interp)

    def _give_up(self, interp: Interpreter) -> None:
        """Leave what computes for so long to Python: a call of the root frame, what comes after the last operator, or
        all of it."""
        name = interp.frames[-1].function.__qualname__
        if len(interp.frames) > 1 and self.in_call > _MOST // 2:
            raise Break("LW122", name)
        if any(node.op == "call_function" for node in interp.recorder.graph.nodes):
            raise TooLong(name, self.since)
        raise FrameRefused("LW122", name)
