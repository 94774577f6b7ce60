"""Symbolic ints on the interpreter's stack. They are `torch.SymInt`s there, as torch gives them for sizes, and what the
program does with them is done on `SymbolicInt`s: arithmetic stays symbolic, questions become conditions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch

from lampwork.capture.breaks import Break
from lampwork.graph.symbols import SymbolicInt
from lampwork.graph.symnode import from_torch, symint
from lampwork.graph.tracetensor import TraceTensor

SymInt = torch.SymInt

_ARITHMETIC_FUNCTIONS = frozenset(
    function for name, function in vars(operator).items() if callable(function) and not name.startswith("_")
) | {abs, divmod, pow, round, max, min}
_ARITHMETIC: frozenset[type] = frozenset({int, bool, float, complex, SymInt})


class NumbersNeeded(Break):
    """Native code met a symbolic int that it takes for no int. The region is captured again, with numbers."""

    def __init__(self, error: TypeError) -> None:
        super().__init__("LW115", str(error))


def is_refusal(error: BaseException) -> bool:
    """Whether an exception comes from native code that does not know symbolic ints: eager, with an int, has none."""
    return isinstance(error, TypeError) and "SymInt" in str(error)


def operate(function: Callable[..., Any], *operands: Any) -> Any:
    """An operator of Python, some of whose operands may be symbolic."""
    if SymInt not in map(type, operands):
        return function(*operands)
    if any(type(operand) is TraceTensor for operand in operands):
        return function(*operands)
    if all(type(operand) in _ARITHMETIC for operand in operands) or function in (operator.mul, operator.imul):
        return to_stack(function(*[SymbolicInt.of(operand) for operand in operands]))
    return function(*[fixed(operand) for operand in operands])


def operate_native(function: Callable[..., Any], operands: list[Any]) -> Any:
    """A native function without effects, some of whose operands may be symbolic."""
    if SymInt not in map(type, operands):
        return result(function(*operands))
    if function in _ARITHMETIC_FUNCTIONS:
        return operate(function, *operands)
    return result(function(*operands))


def to_stack(value: Any) -> Any:
    """A result of arithmetic as the interpreter holds it."""
    if isinstance(value, tuple):
        return tuple(to_stack(item) for item in cast("tuple[Any, ...]", value))
    return symint(value) if isinstance(value, SymbolicInt) else value


def result(value: Any) -> Any:
    """What native code gave: torch's symbolic floats and truth values are numbers here."""
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        return value.node.value
    return value


def fixed(value: Any) -> Any:
    """The number of a symbolic int, for which the region is then; any other value as it is."""
    return int(value) if type(value) is SymInt else value


def number_of(value: torch.SymInt) -> Any:
    """The SymbolicInt, or int, of a value on the stack."""
    return from_torch(value)


def has_symbols(value: Any) -> bool:
    """Whether a tuple or list holds a symbolic int."""
    return any(type(item) is SymInt for item in value)
