"""Instructions of CPython 3.13: a called function lies below its receiver or NULL, and tests take bools only."""

from __future__ import annotations

import dis
import types
from typing import TYPE_CHECKING, Any

from lampwork.capture.model.frame import Frame
from lampwork.capture.model.values import NULL
from lampwork.capture.opcodes import common, control, data, py312
from lampwork.capture.opcodes.table import Opcodes
from lampwork.capture.semantics.appends import load_attribute, load_global
from lampwork.capture.semantics.operands import (
    annotations_of,
    format_value,
    is_unwritten,
    reformatted,
    star_arguments,
    text_of,
    use,
)
from lampwork.capture.semantics.protocols import compare, truth
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

REFUSED: dict[str, str] = {
    **py312.REFUSED,
    "ENTER_EXECUTOR": common.NEVER,
    "EXIT_INIT_CHECK": common.NEVER,
}
# Folded away when code is decoded.
FOLDED = frozenset({"CACHE", "EXTENDED_ARG"})
# Instructions of 3.12 only.
_GONE = frozenset({"FORMAT_VALUE", "LOAD_CLOSURE"})

OPCODES = Opcodes(py312.OPCODES, without=_GONE, refused=REFUSED)

# --- moving values ----------------------------------------------------------------------------------------------------


@OPCODES.handles
def LOAD_FAST_LOAD_FAST(interp: Interpreter, frame: Frame, names: tuple[str, str]) -> None:
    data.LOAD_FAST(interp, frame, names[0])
    data.LOAD_FAST(interp, frame, names[1])


@OPCODES.handles
def STORE_FAST_STORE_FAST(interp: Interpreter, frame: Frame, names: tuple[str, str]) -> None:
    py312.STORE_FAST(interp, frame, names[0])
    py312.STORE_FAST(interp, frame, names[1])


@OPCODES.handles
def STORE_FAST_LOAD_FAST(interp: Interpreter, frame: Frame, names: tuple[str, str]) -> None:
    py312.STORE_FAST(interp, frame, names[0])
    data.LOAD_FAST(interp, frame, names[1])


@OPCODES.handles
def LOAD_GLOBAL(interp: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    name, push_null = arg
    frame.stack.append(load_global(interp, frame, name))
    if push_null:
        frame.stack.append(NULL)


@OPCODES.handles
def LOAD_ATTR(interp: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    """With the flag it is a method to be called: NULL goes over it, a bound method being as good as a method."""
    name, is_method = arg
    frame.stack.append(load_attribute(interp, frame, name))
    if is_method:
        frame.stack.append(NULL)


@OPCODES.handles
def LOAD_SUPER_ATTR(interp: Interpreter, frame: Frame, arg: tuple[str, bool, bool]) -> None:
    frame.stack.append(py312.super_attr(interp, frame, arg))
    if arg[1]:
        frame.stack.append(NULL)


# --- functions --------------------------------------------------------------------------------------------------------


@OPCODES.handles
def CALL(interp: Interpreter, frame: Frame, arg: tuple[int, tuple[str, ...]]) -> None:
    """Stack: function, self or NULL, args..."""
    args = frame.pop_many(arg[0])
    _call(interp, frame, args, {})


@OPCODES.handles
def CALL_KW(interp: Interpreter, frame: Frame, count: int) -> None:
    """Stack: function, self or NULL, args..., names of the last of them."""
    names: tuple[str, ...] = frame.stack.pop()
    args = frame.pop_many(count)
    first_named = count - len(names)
    _call(interp, frame, args[:first_named], dict(zip(names, args[first_named:], strict=True)))


def _call(interp: Interpreter, frame: Frame, args: list[Any], kwargs: dict[str, Any]) -> None:
    receiver, function = frame.stack.pop(), frame.stack.pop()
    if receiver is not NULL:
        args.insert(0, receiver)
    frame.stack.append(interp.call_unread(function, args, kwargs))


@OPCODES.handles
def CALL_FUNCTION_EX(interp: Interpreter, frame: Frame, flags: int) -> None:
    """Stack: function, NULL, positional, and a mapping of named arguments if the flag is set."""
    args, kwargs = star_arguments(interp, frame, bool(flags & 1))
    frame.stack.pop()
    frame.stack.append(interp.call_unread(frame.stack.pop(), args, kwargs))


@OPCODES.handles
def MAKE_FUNCTION(interp: Interpreter, frame: Frame, arg: Any) -> None:
    """A function without closure, defaults and annotations; SET_FUNCTION_ATTRIBUTE adds them at once."""
    code: types.CodeType = frame.stack.pop()
    closure = tuple(types.CellType() for _ in code.co_freevars) or None
    frame.stack.append(data.new_function(interp, frame, code, closure))


@OPCODES.handles
def SET_FUNCTION_ATTRIBUTE(interp: Interpreter, frame: Frame, flag: int) -> None:
    """Stack: attribute, function. 1: defaults, 2: defaults by keyword, 4: annotations, 8: closure."""
    function: types.FunctionType = frame.stack.pop()
    value = frame.stack.pop()
    if flag == 1:
        function.__defaults__ = value
    elif flag == 2:
        function.__kwdefaults__ = value
    elif flag == 4:
        function.__annotations__ = annotations_of(value)
    else:
        # The closure of a function cannot be set; nothing has seen this one yet.
        function = data.new_function(interp, frame, function.__code__, value, function)
    frame.stack.append(function)


# --- operators --------------------------------------------------------------------------------------------------------


@OPCODES.handles
def TO_BOOL(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(_tested(interp, use(interp, frame)))


def _tested(interp: Interpreter, value: Any) -> Any:
    """The truth of a value. A tensor whose truth is not known stays: what tests it comes next and ends the region, so
    that either branch goes on as a region of its own."""
    return value if type(value) is TraceTensor and value.known is None else truth(interp, value)


@OPCODES.handles
def COMPARE_OP(interp: Interpreter, frame: Frame, arg: tuple[int, bool]) -> None:
    """With the flag the result is going to be tested, and its truth is what is wanted."""
    number, wants_bool = arg
    right = use(interp, frame)
    result = compare(interp, dis.cmp_op[number], use(interp, frame), right)
    frame.stack.append(_tested(interp, result) if wants_bool else result)


@OPCODES.handles
def CONVERT_VALUE(interp: Interpreter, frame: Frame, kind: int) -> None:
    """1: str, 2: repr, 3: ascii."""
    value = use(interp, frame)
    frame.stack.append(text_of(interp, value, lambda: interp.call((str, repr, ascii)[kind - 1], [value], {})))


@OPCODES.handles
def FORMAT_SIMPLE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    """Of a text that is unwritten, as a conversion may leave it, it is that text."""
    if is_unwritten(frame.stack[-1]):
        return
    value = use(interp, frame)
    frame.stack.append(text_of(interp, value, lambda: format_value(interp, value, "")))


@OPCODES.handles
def FORMAT_WITH_SPEC(interp: Interpreter, frame: Frame, arg: Any) -> None:
    spec = use(interp, frame)
    if is_unwritten(frame.stack[-1]):
        reformatted(interp, frame.stack[-1], spec)
        return
    value = use(interp, frame)
    frame.stack.append(text_of(interp, value, lambda: format_value(interp, value, spec), spec))


# --- iteration --------------------------------------------------------------------------------------------------------


@OPCODES.handles
def FOR_ITER(interp: Interpreter, frame: Frame, target: int) -> Any:
    """At the end the iterator is popped, and END_FOR and POP_TOP at `target` are skipped."""
    return control.FOR_ITER(interp, frame, target + 2)


@OPCODES.handles
def END_FOR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.pop()
