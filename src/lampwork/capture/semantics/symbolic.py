"""Symbolic numbers on the interpreter's stack. They are `torch.SymInt`s and `torch.SymFloat`s there, as torch gives
them for sizes, and what the program does with them is done on `SymbolicInt`s and `SymbolicFloat`s: arithmetic stays
symbolic, questions become conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from lampwork.capture.model.errors import Break
from lampwork.graph.symbols import SymbolicFloat, SymbolicInt
from lampwork.graph.symnode import from_torch, symbol
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import math, operator

SYMBOLS: frozenset[type] = frozenset({torch.SymInt, torch.SymFloat})

_ARITHMETIC_FUNCTIONS = frozenset(
    function for name, function in vars(operator).items() if callable(function) and not name.startswith("_")
) | {abs, divmod, pow, round, max, min}
_FLOAT_FUNCTIONS = frozenset(function for function in vars(math).values() if callable(function))
_ARITHMETIC: frozenset[type] = frozenset({int, bool, float, complex}) | SYMBOLS


class NumbersNeeded(Break):
    """Native code met a symbolic number that it takes for none. The region is captured again, with numbers."""

    def __init__(self, error: Exception) -> None:
        super().__init__("LW115", str(error))


def is_refusal(error: BaseException) -> bool:
    """Whether an exception comes from native code that does not know symbolic numbers: eager, with a number, has
    none."""
    return isinstance(error, TypeError) and any(name in str(error) for name in ("SymInt", "SymFloat"))


def operate(function: Callable[..., Any], *operands: Any) -> Any:
    """An operator of Python, some of whose operands may be symbolic."""
    kinds = set(map(type, operands))
    if not kinds & SYMBOLS or TraceTensor in kinds:
        return function(*operands)
    if kinds <= _ARITHMETIC or function in (operator.mul, operator.imul):
        return to_stack(function(*[from_torch(operand) for operand in operands]))
    return function(*[fixed(operand) for operand in operands])


def operate_native(function: Callable[..., Any], operands: list[Any]) -> Any:
    """A native function without effects, some of whose operands may be symbolic."""
    kinds = set(map(type, operands))
    if not kinds & SYMBOLS:
        return result(function(*operands))
    if function in _ARITHMETIC_FUNCTIONS:
        return operate(function, *operands)
    if function in _FLOAT_FUNCTIONS and kinds <= _ARITHMETIC:
        return apply(function, *operands)
    return result(function(*operands))


def apply(function: Callable[..., Any], *operands: Any) -> Any:
    """A function of numbers to a float, computed by Python for each call's values."""
    numbers = [from_torch(operand) for operand in operands]
    scope = next((n.scope for n in numbers if isinstance(n, (SymbolicInt, SymbolicFloat))), None)
    return to_stack(function(*numbers) if scope is None else SymbolicFloat.apply(scope, function, *numbers))


def to_stack(value: Any) -> Any:
    """A result of arithmetic as the interpreter holds it."""
    if isinstance(value, tuple):
        return tuple(to_stack(item) for item in cast("tuple[Any, ...]", value))
    return symbol(value) if isinstance(value, (SymbolicInt, SymbolicFloat)) else value


def result(value: Any) -> Any:
    """What native code gave: torch's constant floats and truth values are numbers here."""
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        number = value.node.value
        return value if isinstance(number, SymbolicFloat) else number
    return value


def numbers(*operands: Any) -> tuple[Any, ...]:
    """Operands of a native operator that is not torch's, the symbolic ones fixed: a torch.SymInt passes for a Python
    int there, whose result in NumPy is one of NumPy's."""
    if TraceTensor in map(type, operands):
        return operands
    return tuple(map(fixed, operands))


def fixed(value: Any) -> Any:
    """The number of a symbolic one, for which the region is then; any other value as it is."""
    number = from_torch(value) if type(value) in SYMBOLS else value
    return number.fix() if isinstance(number, (SymbolicInt, SymbolicFloat)) else number


def has_symbols(value: Any) -> bool:
    """Whether a tuple or list holds a symbolic number."""
    return any(type(item) in SYMBOLS for item in value)
