"""Instructions that steer: iteration, jumps, calls, exceptions, imports, matching; the same in CPython 3.11 and 3.12.

A handler gets the interpreter, the frame and the decoded argument; it returns None, or a Signal to leave the frame.
Handlers that only move values keep them unread (`Lazy`); those that use a value force it.
"""

from __future__ import annotations

import builtins
import collections.abc
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.model.errors import Break
from lampwork.capture.model.frame import Frame
from lampwork.capture.model.region import Attr
from lampwork.capture.model.values import NULL, Generator, Lazy, Previous, Signal
from lampwork.capture.opcodes.table import Opcodes
from lampwork.capture.semantics.attributes import MISSING, has_attr, load_attr
from lampwork.capture.semantics.imports import import_from, import_module
from lampwork.capture.semantics.iteration import get_iter, is_foreign_iterator, next_item
from lampwork.capture.semantics.operands import none_test, star_arguments, use, use_many
from lampwork.capture.semantics.protocols import contains, get_item, truth

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

OPCODES = Opcodes()

# --- iteration --------------------------------------------------------------------------------------------------------


@OPCODES.handles
def GET_ITER(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(get_iter(interp, use(interp, frame)))


@OPCODES.handles
def GET_YIELD_FROM_ITER(interp: Interpreter, frame: Frame, arg: Any) -> None:
    value = use(interp, frame)
    frame.stack.append(value if type(value) is Generator else get_iter(interp, value))


@OPCODES.handles
def RETURN_GENERATOR(interp: Interpreter, frame: Frame, arg: Any) -> Signal:
    frame.value = interp.make_generator(frame)
    return Signal.RETURN


@OPCODES.handles
def SEND(interp: Interpreter, frame: Frame, target: int) -> Any:
    """Send the top value to the iterator below it; what it yields replaces the value. 3.11 pops both at the end."""
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
        frame.stack.pop()
        frame.stack.append(stop.value)
        frame.ip = target
        return
    frame.stack.append(result)


@OPCODES.handles
def FOR_ITER(interp: Interpreter, frame: Frame, target: int) -> Any:
    if type(frame.stack[-1]) is Generator:
        frame.stack[-1].loop = frame, frame.ip - 1
    if is_foreign_iterator(interp, frame.stack[-1]):
        return interp.pause(frame, Break("LW118", "the iterator"))
    try:
        frame.stack.append(next_item(interp, frame.stack[-1]))
    except StopIteration:
        frame.stack.pop()
        frame.ip = target


# --- jumps ------------------------------------------------------------------------------------------------------------


@OPCODES.handles
def JUMP_FORWARD(interp: Interpreter, frame: Frame, target: int) -> None:
    frame.ip = target


@OPCODES.handles_also("JUMP_BACKWARD_NO_INTERRUPT")
def JUMP_BACKWARD(interp: Interpreter, frame: Frame, target: int) -> None:
    _jump(interp, frame, target)


def _jump(interp: Interpreter, frame: Frame, target: int) -> None:
    """Go on elsewhere; a loop is on the account of what capture may interpret."""
    if target < frame.ip:
        interp.effort.spend(interp, frame.ip - target)
    frame.ip = target


@OPCODES.handles
def POP_JUMP_IF_TRUE(interp: Interpreter, frame: Frame, target: int) -> None:
    value = frame.stack.pop()
    if value is True or (value is not False and truth(interp, interp.force(value))):
        _jump(interp, frame, target)


@OPCODES.handles
def POP_JUMP_IF_FALSE(interp: Interpreter, frame: Frame, target: int) -> None:
    value = frame.stack.pop()
    if value is False or (value is not True and not truth(interp, interp.force(value))):
        _jump(interp, frame, target)


@OPCODES.handles
def POP_JUMP_IF_NONE(interp: Interpreter, frame: Frame, target: int) -> None:
    if none_test(interp, frame.stack.pop()) is None:
        _jump(interp, frame, target)


@OPCODES.handles
def POP_JUMP_IF_NOT_NONE(interp: Interpreter, frame: Frame, target: int) -> None:
    if none_test(interp, frame.stack.pop()) is not None:
        _jump(interp, frame, target)


# --- calls, returns ---------------------------------------------------------------------------------------------------


@OPCODES.handles
def CALL(interp: Interpreter, frame: Frame, arg: tuple[int, tuple[str, ...]]) -> None:
    """Stack: NULL, function, args... or method, self, args...; the last arguments are named by `kwnames`."""
    count, kwnames = arg
    stack = frame.stack
    args = frame.pop_many(count)
    second, first = stack.pop(), stack.pop()
    if first is NULL:
        function = second
    else:
        function = first
        args.insert(0, second)
    kwargs: dict[str, Any] = {}
    if kwnames:
        named = args[-len(kwnames) :]
        del args[-len(kwnames) :]
        kwargs = dict(zip(kwnames, named, strict=True))
    stack.append(interp.call_unread(function, args, kwargs))


@OPCODES.handles
def CALL_FUNCTION_EX(interp: Interpreter, frame: Frame, flags: int) -> None:
    """Stack: NULL, function, positional, and a mapping of named arguments if the flag is set."""
    args, kwargs = star_arguments(interp, frame, bool(flags & 1))
    function = frame.stack.pop()
    frame.stack.pop()
    frame.stack.append(interp.call_unread(function, args, kwargs))


@OPCODES.handles
def RETURN_VALUE(interp: Interpreter, frame: Frame, arg: Any) -> Signal:
    frame.value = frame.stack.pop()
    return Signal.RETURN


@OPCODES.handles
def YIELD_VALUE(interp: Interpreter, frame: Frame, arg: Any) -> Signal:
    frame.value = use(interp, frame)
    return Signal.YIELD


@OPCODES.handles
def RESUME(interp: Interpreter, frame: Frame, arg: Any) -> None:
    pass


# --- exceptions -------------------------------------------------------------------------------------------------------


@OPCODES.handles
def RAISE_VARARGS(interp: Interpreter, frame: Frame, count: int) -> None:
    values = use_many(interp, frame, count)
    if not values:
        handled = interp.handled()
        if handled is None:
            raise RuntimeError("No active exception to reraise")
        raise handled
    error = interp.call(values[0], [], {}) if isinstance(values[0], type) else values[0]
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if interp.environment.entry(error) is not None and interp.handled() is not error:
        # Its traceback and context are written to.
        raise Break("LW117", type(error).__name__)
    if len(values) == 2:
        cause = interp.call(values[1], [], {}) if isinstance(values[1], type) else values[1]
        raise error from cause
    raise error


@OPCODES.handles
def RERAISE(interp: Interpreter, frame: Frame, depth: int) -> None:
    raise cast(BaseException, use(interp, frame))


@OPCODES.handles
def PUSH_EXC_INFO(interp: Interpreter, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    frame.stack.append(Previous(frame.handled))
    frame.stack.append(error)
    frame.handled = interp.force(error)


@OPCODES.handles
def POP_EXCEPT(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.handled = frame.stack.pop().error


@OPCODES.handles
def CHECK_EXC_MATCH(interp: Interpreter, frame: Frame, arg: Any) -> None:
    kinds = use(interp, frame)
    frame.stack.append(isinstance(interp.force(frame.stack[-1]), kinds))


@OPCODES.handles
def BEFORE_WITH(interp: Interpreter, frame: Frame, arg: Any) -> None:
    manager = use(interp, frame)
    for name in ("__enter__", "__exit__"):
        if interp.lookup(type(manager), name)[0] is MISSING:
            raise TypeError(
                f"{type(manager).__name__!r} object does not support the context manager protocol"
            )
    leave = load_attr(interp, manager, "__exit__")
    enter = load_attr(interp, manager, "__enter__")
    frame.stack.append(leave)
    frame.stack.append(interp.call(enter, [], {}))


@OPCODES.handles
def WITH_EXCEPT_START(interp: Interpreter, frame: Frame, arg: Any) -> None:
    """Stack: ..., exit, lasti, previous exception, exception."""
    leave_with(interp, frame, 4)


def leave_with(interp: Interpreter, frame: Frame, depth: int) -> None:
    """Call the bound `__exit__`, which lies at this depth of the stack, with the exception on top of it."""
    error = interp.force(frame.stack[-1])
    leave = interp.force(frame.stack[-depth])
    known = interp.environment.entry(error)
    trace: Any = error.__traceback__
    if known is not None:
        trace = Lazy(trace, Attr(known.source, "__traceback__"), "the traceback")
    frame.stack.append(interp.call(leave, [type(error), error, trace], {}))


# --- imports ----------------------------------------------------------------------------------------------------------


@OPCODES.handles
def IMPORT_NAME(interp: Interpreter, frame: Frame, name: str) -> None:
    level, wanted = use_many(interp, frame, 2)
    frame.stack.append(import_module(interp, frame, name, wanted, level))


@OPCODES.handles
def IMPORT_FROM(interp: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(import_from(interp, interp.force(frame.stack[-1]), name))


@OPCODES.handles
def LOAD_BUILD_CLASS(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(builtins.__build_class__)


# --- pattern matching -------------------------------------------------------------------------------------------------


@OPCODES.handles
def GET_LEN(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(interp.call(len, [frame.stack[-1]], {}))


@OPCODES.handles
def MATCH_MAPPING(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(isinstance(interp.force(frame.stack[-1]), collections.abc.Mapping))


@OPCODES.handles
def MATCH_SEQUENCE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    value = interp.force(frame.stack[-1])
    frame.stack.append(
        isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes, bytearray))
    )


@OPCODES.handles
def MATCH_KEYS(interp: Interpreter, frame: Frame, arg: Any) -> None:
    keys, subject = frame.stack[-1], interp.force(frame.stack[-2])
    found = all(contains(interp, key, subject) for key in keys)
    frame.stack.append(tuple(get_item(interp, subject, key) for key in keys) if found else None)


@OPCODES.handles
def MATCH_CLASS(interp: Interpreter, frame: Frame, count: int) -> None:
    subject, cls, names = use_many(interp, frame, 3)
    if not interp.call(isinstance, [subject, cls], {}):
        frame.stack.append(None)
        return
    has_names = has_attr(interp, cls, "__match_args__")
    positional = cast(tuple[str, ...], load_attr(interp, cls, "__match_args__") if has_names else ())
    if count and not positional and cls in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple):
        frame.stack.append((subject,))
        return
    values: list[Any] = []
    for name in (*positional[:count], *names):
        try:
            values.append(load_attr(interp, subject, name))
        except AttributeError:
            frame.stack.append(None)
            return
    frame.stack.append(tuple(values))
