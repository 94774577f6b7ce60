"""Instructions of CPython 3.12."""

from __future__ import annotations

import dis
import types
from typing import TYPE_CHECKING, Any

from lampwork.capture.model.errors import Break
from lampwork.capture.model.frame import Frame
from lampwork.capture.model.values import NULL, Generator, Lazy, Signal
from lampwork.capture.opcodes import common, control, data
from lampwork.capture.opcodes.table import Opcodes
from lampwork.capture.semantics.appends import load_attribute
from lampwork.capture.semantics.attributes import load_attr
from lampwork.capture.semantics.iteration import next_item
from lampwork.capture.semantics.operands import use, use_many
from lampwork.capture.semantics.protocols import get_item, set_item

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

REFUSED: dict[str, str] = {
    **common.REFUSED,
    "CALL_INTRINSIC_2": "type parameters and exception groups are not captured",
    "LOAD_FROM_DICT_OR_DEREF": "only found in class bodies",
    "LOAD_FROM_DICT_OR_GLOBALS": "only found in class bodies",
    "LOAD_LOCALS": "only found in class bodies",
    "INTERPRETER_EXIT": common.NEVER,
    "RESERVED": common.NEVER,
}
# Folded away when code is decoded.
FOLDED = frozenset({"CACHE", "EXTENDED_ARG", "KW_NAMES"})
# In the common table, but not instructions of this version.
_GONE = frozenset({"LIST_TO_TUPLE"})

OPCODES = Opcodes(common.COMMON, without=_GONE, refused=REFUSED)
OPCODES["COMPARE_OP"] = common.jump_compare(dis.cmp_op)


@OPCODES.handles
def LOAD_ATTR(interp: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    """With the flag it is a method to be called: NULL goes under it, a bound method being as good as a method."""
    name, is_method = arg
    value = load_attribute(interp, frame, name)
    if is_method:
        frame.stack.append(NULL)
    frame.stack.append(value)


@OPCODES.handles
def LOAD_SUPER_ATTR(interp: Interpreter, frame: Frame, arg: tuple[str, bool, bool]) -> None:
    """super().name, without the super object; both operands of super() are on the stack."""
    value = super_attr(interp, frame, arg)
    if arg[1]:
        frame.stack.append(NULL)
    frame.stack.append(value)


def super_attr(interp: Interpreter, frame: Frame, arg: tuple[str, bool, bool]) -> Any:
    """The attribute `arg[0]` of super(cls, receiver); `arg[2]`: the program itself wrote both operands, which matters
    to something else of the name super."""
    name, _, has_operands = arg
    function, cls, receiver = use_many(interp, frame, 3)
    operands = [cls, receiver] if has_operands or function is super else []
    return load_attr(interp, interp.call(function, operands, {}), name)


@OPCODES.handles
def LOAD_FAST_CHECK(interp: Interpreter, frame: Frame, name: str) -> None:
    data.LOAD_FAST(interp, frame, name)


@OPCODES.handles
def LOAD_FAST_AND_CLEAR(interp: Interpreter, frame: Frame, name: str) -> None:
    """Inlined comprehensions save the outer variable of the same name, if there is one: its value, or its cell."""
    if name in frame.cells:
        frame.stack.append(frame.cells.pop(name))
    else:
        frame.stack.append(frame.locals.pop(name, NULL))


@OPCODES.handles
def STORE_FAST(interp: Interpreter, frame: Frame, name: str) -> None:
    """What LOAD_FAST_AND_CLEAR saved may be NULL, which makes the variable unbound again, or a variable's cell."""
    value = frame.stack.pop()
    if value is NULL:
        frame.cells.pop(name, None)
        frame.locals.pop(name, None)
        return
    held = value.value if type(value) is Lazy else value
    if type(held) is types.CellType and name in frame.decoded.code.co_cellvars:
        frame.cells[name] = interp.force(value)
        frame.locals.pop(name, None)  # the variable of the comprehension
        return
    if name in frame.cells:
        del frame.cells[name]
    frame.locals[name] = value


@OPCODES.handles
def RETURN_CONST(interp: Interpreter, frame: Frame, value: Any) -> Signal:
    frame.value = value
    return Signal.RETURN


@OPCODES.handles
def BINARY_SLICE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    container, start, stop = use_many(interp, frame, 3)
    frame.stack.append(get_item(interp, container, slice(start, stop)))


@OPCODES.handles
def STORE_SLICE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    value, container, start, stop = use_many(interp, frame, 4)
    set_item(interp, container, slice(start, stop), value)


@OPCODES.handles
def FOR_ITER(interp: Interpreter, frame: Frame, target: int) -> Any:
    """At the end the iterator is popped and the END_FOR at `target` skipped."""
    return control.FOR_ITER(interp, frame, target + 1)


@OPCODES.handles
def END_FOR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.pop_many(2)


@OPCODES.handles
def SEND(interp: Interpreter, frame: Frame, target: int) -> None:
    """The receiver stays below the result, also at the end, where END_SEND pops it."""
    value = use(interp, frame)
    receiver = frame.stack[-1]
    try:
        if type(receiver) is Generator:
            result = receiver.send(value)
        elif value is None:
            result = next_item(interp, receiver)
        else:
            result = interp.call(load_attr(interp, receiver, "send"), [value], {})
    except StopIteration as stop:
        frame.stack.append(stop.value)
        frame.ip = target
        return
    frame.stack.append(result)


@OPCODES.handles
def END_SEND(interp: Interpreter, frame: Frame, arg: Any) -> None:
    del frame.stack[-2]


@OPCODES.handles
def CLEANUP_THROW(interp: Interpreter, frame: Frame, arg: Any) -> None:
    """Stack: iterator, last sent value, exception that throw() raised."""
    error = frame.stack[-1]
    if not isinstance(error, StopIteration):
        raise error
    frame.pop_many(3)
    frame.stack.extend((None, error.value))


@OPCODES.handles
def CALL_INTRINSIC_1(interp: Interpreter, frame: Frame, number: int) -> None:
    """3: StopIteration in a generator becomes RuntimeError; 5: unary plus; 6: list to tuple."""
    value = use(interp, frame)
    if number == 3:
        if isinstance(value, StopIteration):
            raise RuntimeError("generator raised StopIteration") from value
        frame.stack.append(value)
    elif number == 5:
        frame.stack.append(data.unary(interp, value, "__pos__"))
    elif number == 6:
        frame.stack.append(tuple(value))
    else:
        raise Break("LW115", f"CALL_INTRINSIC_1 {number}")
