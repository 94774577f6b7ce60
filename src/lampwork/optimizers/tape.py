"""Arithmetic on hyperparameters and step counts, noted while Python does it, to be done again on other values.

tape = Tape()
lr, beta, step = tape.float(0, 1e-3), tape.float(1, 0.9), tape.count(0, 7.0)
-(lr / (1 - beta ** step))      # Number(-0.0019...)
tape.instructions               # (("float", 0, 0, 0.0), ..., ("pow", 1, 2, 0.0), ("sub", 4, 3, 0.0), ...)

csrc/replay.cpp runs the instructions: in float64, as Python does. Where Python would raise an error, and where a
question about a number would be answered otherwise, the tape does not serve the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lampwork.standard import operator

Instruction = tuple[str, int, int, float]
"""An operation; the instructions whose values it takes, or the place of a float or count; the value of a constant, or
the answer to a question."""


class Unrepeatable(Exception):
    """A number is used for what no tape can do."""


class Tape:
    """What was computed so far: each instruction once."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int, int, str], int] = {}
        self.instructions: list[Instruction] = []

    def float(self, place: int, value: float) -> Number:
        """The hyperparameter of a place, which is `value` now."""
        return Number(self, self._note("float", place), value)

    def count(self, place: int, value: float) -> Number:
        """The step count of a place, which is `value` now."""
        return Number(self, self._note("count", place), value)

    def place_of(self, value: Any) -> int:
        """The instruction that a number is the value of, or a constant.

        Raises:
            Unrepeatable: it is none, or float64 does not hold it.
        """
        if isinstance(value, Number):
            return value.place
        if not isinstance(value, (int, float)) or (isinstance(value, int) and abs(value) > 2**53):
            raise Unrepeatable(f"a {type(value).__name__} takes part in arithmetic")
        return self._note("constant", value=float(value))

    def apply(self, name: str, *operands: Any) -> Number:
        """A function of the module `operator`, of numbers."""
        value = getattr(operator, name)(*[value_of(each) for each in operands])
        if not isinstance(value, float):
            raise Unrepeatable(f"{name} gives a {type(value).__name__}")
        return Number(self, self._note(name, *map(self.place_of, operands)), value)

    def ask(self, name: str, left: Any, right: Any) -> bool:
        """The answer to a comparison, which the tape holds all values to."""
        answer: bool = getattr(operator, name)(value_of(left), value_of(right))
        self._note(name, self.place_of(left), self.place_of(right), float(answer))
        return answer

    def _note(self, name: str, a: int = 0, b: int = 0, value: float = 0.0) -> int:
        key = (name, a, b, value.hex())
        if key not in self._places:
            self._places[key] = len(self.instructions)
            self.instructions.append((name, a, b, value))
        return self._places[key]


def _both_ways(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator of two numbers, and its reflection."""

    def forward(self: Number, other: Any) -> Any:
        return self.tape.apply(name, self, other) if _is_number(other) else NotImplemented

    def reflected(self: Number, other: Any) -> Any:
        return self.tape.apply(name, other, self) if _is_number(other) else NotImplemented

    return forward, reflected


def _compared(name: str, *, swapped: bool = False, negated: bool = False) -> Callable[..., Any]:
    def compared(self: Number, other: Any) -> Any:
        if not _is_number(other):
            return NotImplemented
        return self.tape.ask(name, *((other, self) if swapped else (self, other))) is not negated

    return compared


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Number))


class Number:
    """A float in arithmetic and comparisons that a tape notes. Whatever else needs its value raises Unrepeatable."""

    __slots__ = ("place", "tape", "value")

    def __init__(self, tape: Tape, place: int, value: float) -> None:
        self.tape = tape
        self.place = place
        self.value = value

    __add__, __radd__ = _both_ways("add")
    __sub__, __rsub__ = _both_ways("sub")
    __mul__, __rmul__ = _both_ways("mul")
    __truediv__, __rtruediv__ = _both_ways("truediv")
    __pow__, __rpow__ = _both_ways("pow")
    __lt__ = _compared("lt")
    __le__ = _compared("le")
    __gt__ = _compared("lt", swapped=True)
    __ge__ = _compared("le", swapped=True)
    __eq__ = _compared("eq")
    __ne__ = _compared("eq", negated=True)

    def __neg__(self) -> Number:
        return self.tape.apply("neg", self)

    def __pos__(self) -> Number:
        return self

    def __abs__(self) -> Number:
        return self.tape.apply("abs", self)

    def __bool__(self) -> bool:
        return self != 0

    def __float__(self) -> float:
        raise Unrepeatable("a number is needed as a float")

    __hash__ = __int__ = __index__ = __trunc__ = __float__  # pyright: ignore


def value_of(number: Any) -> Any:
    """The float that a Number is now; anything else as it is."""
    return number.value if isinstance(number, Number) else number
