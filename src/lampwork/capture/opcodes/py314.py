"""Instructions of CPython 3.14: some loads only borrow, and what `with` calls is looked up one method at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lampwork.capture.model.frame import SUBSCRIPT, Frame
from lampwork.capture.model.values import NULL
from lampwork.capture.opcodes import control, data, py313
from lampwork.capture.opcodes.table import Opcodes
from lampwork.capture.semantics.attributes import MISSING, load_attr
from lampwork.capture.semantics.operands import use

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# Instructions of 3.13 only.
_GONE = frozenset(
    {
        "BEFORE_ASYNC_WITH",
        "BEFORE_WITH",
        "BINARY_SUBSCR",
        "BUILD_CONST_KEY_MAP",
        "LOAD_ASSERTION_ERROR",
        "RETURN_CONST",
    }
)
REFUSED: dict[str, str] = {
    **{name: reason for name, reason in py313.REFUSED.items() if name not in _GONE},
    "BUILD_INTERPOLATION": "template strings are not captured",
    "BUILD_TEMPLATE": "template strings are not captured",
}
# Folded away when code is decoded.
FOLDED = py313.FOLDED

OPCODES = Opcodes(py313.OPCODES, without=_GONE, refused=REFUSED)

# --- moving values ----------------------------------------------------------------------------------------------------


@OPCODES.handles
def LOAD_FAST_BORROW(interp: Interpreter, frame: Frame, name: str) -> None:
    data.LOAD_FAST(interp, frame, name)


@OPCODES.handles
def LOAD_FAST_BORROW_LOAD_FAST_BORROW(interp: Interpreter, frame: Frame, names: tuple[str, str]) -> None:
    py313.LOAD_FAST_LOAD_FAST(interp, frame, names)


@OPCODES.handles
def LOAD_SMALL_INT(interp: Interpreter, frame: Frame, value: int) -> None:
    frame.stack.append(value)


_COMMON_CONSTANTS = (AssertionError, NotImplementedError, tuple, all, any)


@OPCODES.handles
def LOAD_COMMON_CONSTANT(interp: Interpreter, frame: Frame, number: int) -> None:
    frame.stack.append(_COMMON_CONSTANTS[number])


@OPCODES.handles
def NOT_TAKEN(interp: Interpreter, frame: Frame, arg: Any) -> None:
    """The branch before it did not jump; for monitoring."""


@OPCODES.handles
def POP_ITER(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.pop()


# --- functions and operators ------------------------------------------------------------------------------------------


@OPCODES.handles
def CALL_FUNCTION_EX(interp: Interpreter, frame: Frame, arg: Any) -> None:
    """Stack: function, NULL, positional, and a mapping of named arguments or NULL."""
    has_mapping = frame.stack[-1] is not NULL
    if not has_mapping:
        frame.stack.pop()
    py313.CALL_FUNCTION_EX(interp, frame, has_mapping)


@OPCODES.handles
def SET_FUNCTION_ATTRIBUTE(interp: Interpreter, frame: Frame, flag: int) -> None:
    """As in 3.13; 16: the function that gives the annotations."""
    if flag != 16:
        py313.SET_FUNCTION_ATTRIBUTE(interp, frame, flag)
        return
    function: Any = frame.stack.pop()
    function.__annotate__ = frame.stack.pop()
    frame.stack.append(function)


@OPCODES.handles
def BINARY_OP(interp: Interpreter, frame: Frame, arg: int) -> None:
    (data.BINARY_SUBSCR if arg == SUBSCRIPT else data.BINARY_OP)(interp, frame, arg)


# --- with -------------------------------------------------------------------------------------------------------------

_SPECIAL = ("__enter__", "__exit__", "__aenter__", "__aexit__")


@OPCODES.handles
def LOAD_SPECIAL(interp: Interpreter, frame: Frame, number: int) -> None:
    """The method and its receiver, or NULL over a bound method, which is as good."""
    manager, name = use(interp, frame), _SPECIAL[number]
    kind = type(manager)
    if interp.lookup(kind, name)[0] is MISSING:
        raise TypeError(_missed(kind, name))
    frame.stack += [load_attr(interp, manager, name), NULL]


def _missed(kind: type, name: str) -> str:
    """What Python says of an object of this class, which lacks a method that `with` calls."""
    full = f"{kind.__module__}.{kind.__qualname__}"
    shown = full.removeprefix("builtins.").removeprefix("__main__.")
    text = f"{shown!r} object does not support the context manager protocol (missed {name} method)"
    if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
        return (
            f"{text} but it supports the asynchronous context manager protocol. "
            "Did you mean to use 'async with'?"
        )
    return text


@OPCODES.handles
def WITH_EXCEPT_START(interp: Interpreter, frame: Frame, arg: Any) -> None:
    """Stack: ..., exit, receiver or NULL, lasti, previous exception, exception."""
    control.leave_with(interp, frame, 5)
