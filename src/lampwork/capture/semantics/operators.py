"""The functions of `operator` and the built-in functions behind operators, and equivalents in Python of some others.

A special method that is Python is interpreted; a native one runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lampwork.capture.model.errors import Break
from lampwork.capture.model.values import PLAIN, is_constant
from lampwork.capture.semantics.attributes import MISSING
from lampwork.capture.semantics.iteration import Numbered, native_view
from lampwork.capture.semantics.keys import check_key, guard_distinct
from lampwork.capture.semantics.operands import format_value, taken
from lampwork.capture.semantics.protocols import (
    BINARY,
    COMPARE,
    binary,
    check_decimals,
    compare,
    two_sided,
)
from lampwork.capture.semantics.symbolic import operate_native
from lampwork.graph.tracetensor import TraceTensor
from lampwork.standard import math, operator

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Args = list[Any]
Kwargs = dict[str, Any]
Override = Callable[[Any, Args, Kwargs], Any]

_POW = next(number for number, (name, _) in enumerate(BINARY) if name == "pow")


def _special(function: Callable[..., Any], name: str) -> Override:
    """A function of one value that asks for the value's special method `name`."""

    def ask(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        values = [interp.force(a) for a in args]
        method = interp.python_method(type(values[0]), name) if values else None
        if method is not None:
            return taken(name, values[0], interp.call(method, values, kwargs))
        check_decimals(function.__name__, *values)
        if not kwargs:
            return operate_native(function, values)
        return function(*values, **{k: interp.force(v) for k, v in kwargs.items()})

    return ask


def _binary(number: int) -> Override:
    def apply(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        left, right = (interp.force(a) for a in args)
        return binary(interp, number, left, right)

    return apply


def _comparison(symbol: str) -> Override:
    def apply(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        left, right = (interp.force(a) for a in args)
        return compare(interp, symbol, left, right)

    return apply


def call_divmod(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    left, right = (interp.force(a) for a in args)
    if type(left) in PLAIN and type(right) in PLAIN:
        return operate_native(divmod, [left, right])
    return two_sided(interp, "__divmod__", "__rdivmod__", divmod, left, right, "divmod()")


def call_pow(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    values = [interp.force(a) for a in args]
    if len(values) == 2 and not kwargs:
        return binary(interp, _POW, *values)
    return pow(*values, **{k: interp.force(v) for k, v in kwargs.items()})


def call_format(interp: Interpreter, args: Args, kwargs: Kwargs) -> str:
    values = [interp.force(a) for a in args]
    return format_value(interp, values[0], *(values[1:] or [""]))


def call_hash(interp: Interpreter, args: Args, kwargs: Kwargs) -> int:
    """
    Raises:
        Break: LW103 for an object whose hash is its place in memory.
    """
    value = interp.force(args[0])
    method = interp.python_method(type(value), "__hash__")
    if method is not None:
        return hash(taken("__hash__", value, interp.call(method, [value], {})))
    if type(value) is TraceTensor:
        lifted = interp.environment.lifting.of_trace.get(id(value))
        if lifted is None or not lifted.bound:
            raise Break("LW103", "hash() of an object that differs from call to call")
        return hash(lifted.real)
    entry = interp.environment.entry(value)
    if (
        type(value).__hash__ is object.__hash__
        and not is_constant(value)
        and (entry is None or not entry.known)
    ):
        raise Break("LW103", "hash() of an object that differs from call to call")
    check_key(interp, value, ())
    return hash(interp.environment.original(value) if entry is not None else value)


def call_index_of(interp: Interpreter, args: Args, kwargs: Kwargs) -> int:
    return interp.call_python(index_of, args, {})


def call_count_of(interp: Interpreter, args: Args, kwargs: Kwargs) -> int:
    return interp.call_python(count_of, args, {})


def _identity(answer: bool) -> Override:
    def apply(interp: Interpreter, args: Args, kwargs: Kwargs) -> bool:
        left, right = (interp.force(a) for a in args)
        guard_distinct(interp, left, right)
        return (interp.environment.original(left) is interp.environment.original(right)) == answer

    return apply


def call_function(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    return interp.call(interp.force(args[0]), args[1:], kwargs)


def call_reversed(interp: Interpreter, args: Args, kwargs: Kwargs) -> Any:
    value = interp.force(args[0])
    kind = type(value)
    method = interp.python_method(kind, "__reversed__")
    if method is not None:
        return interp.call(method, [value], {})
    by_number = interp.lookup(kind, "__reversed__")[0] is MISSING
    if by_number and interp.python_method(kind, "__getitem__") is not None:
        return reversed(Numbered(interp, value))
    return reversed(native_view(interp, value))


# --- interpreted, never run as they stand -----------------------------------------------------------------------------


def index_of(items: Any, value: Any) -> int:
    for i, item in enumerate(items):
        if item is value or item == value:
            return i
    raise ValueError("sequence.index(x): x not in sequence")


def count_of(items: Any, value: Any) -> int:
    count = 0
    for item in items:
        if item is value or item == value:
            count += 1
    return count


OVERRIDES: dict[Any, Override] = {
    **{getattr(operator, "and_" if name == "and" else "or_" if name == "or" else name): _binary(number)
       for number, (name, _) in enumerate(BINARY)},
    operator.concat: _binary(0),
    **{function: _comparison(symbol) for symbol, (_, _, function) in COMPARE.items()},
    **{getattr(operator, name): _special(getattr(operator, name), f"__{name}__")
       for name in ("neg", "pos", "invert", "index")},
    abs: _special(abs, "__abs__"),
    operator.abs: _special(abs, "__abs__"),
    round: _special(round, "__round__"),
    **{function: _special(function, f"__{function.__name__}__") for function in (math.floor, math.ceil, math.trunc)},
    complex: _special(complex, "__complex__"),
    bytes: _special(bytes, "__bytes__"),
    divmod: call_divmod,
    pow: call_pow,
    format: call_format,
    hash: call_hash,
    reversed: call_reversed,
    operator.indexOf: call_index_of,
    operator.countOf: call_count_of,
    operator.is_: _identity(True),
    operator.is_not: _identity(False),
    operator.call: call_function,
}  # fmt: skip
