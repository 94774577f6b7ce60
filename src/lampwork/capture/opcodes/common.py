"""Instructions that mean the same in CPython 3.11 and 3.12.

A handler gets the interpreter, the frame and the decoded argument; it returns None, or a Signal to leave the frame.
Handlers that only move values keep them unread (`Lazy`); those that use a value force it.
"""

from __future__ import annotations

import builtins
import collections.abc
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from lampwork.capture.attributes import MISSING, delete_attr, load_attr, lookup_type, store_attr
from lampwork.capture.breaks import Break
from lampwork.capture.frame import Frame
from lampwork.capture.protocols import (
    binary,
    compare,
    contains,
    delete_item,
    get_item,
    get_iter,
    iterate,
    next_item,
    set_item,
    truth,
)
from lampwork.capture.values import CONSTANTS, NULL, Generator, Lazy, Signal
from lampwork.graph.tracetensor import TraceTensor

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

Handler = Callable[["Interpreter", Frame, Any], Any]


def use(interp: Interpreter, frame: Frame) -> Any:
    """Pop a value that is going to be used."""
    value = frame.stack.pop()
    return interp.force(value) if type(value) is Lazy else value


def use_many(interp: Interpreter, frame: Frame, count: int) -> list[Any]:
    return [interp.force(v) if type(v) is Lazy else v for v in frame.pop_many(count)]


# --- moving values ----------------------------------------------------------------------------------------------------


def NOP(interp: Interpreter, frame: Frame, arg: Any) -> None:
    pass


def POP_TOP(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.pop()


def PUSH_NULL(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(NULL)


def SWAP(interp: Interpreter, frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


def COPY(interp: Interpreter, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.stack[-arg])


def LOAD_CONST(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(arg)


def LOAD_FAST(interp: Interpreter, frame: Frame, name: str) -> None:
    try:
        frame.stack.append(frame.locals[name])
    except KeyError:
        cell = frame.cells.get(name)
        if cell is None:
            raise UnboundLocalError(
                f"cannot access local variable {name!r} where it is not associated with a value"
            ) from None
        frame.stack.append(cell)


def STORE_FAST(interp: Interpreter, frame: Frame, name: str) -> None:
    frame.locals[name] = frame.stack.pop()


def DELETE_FAST(interp: Interpreter, frame: Frame, name: str) -> None:
    if name not in frame.locals:
        raise UnboundLocalError(
            f"cannot access local variable {name!r} where it is not associated with a value"
        )
    del frame.locals[name]


def LOAD_GLOBAL(interp: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    name, push_null = arg
    if push_null:
        frame.stack.append(NULL)
    frame.stack.append(interp.load_global(frame, name))


def STORE_GLOBAL(interp: Interpreter, frame: Frame, name: str) -> None:
    interp.store_global(frame, name, frame.stack.pop())


def LOAD_ASSERTION_ERROR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(AssertionError)


# --- cells ------------------------------------------------------------------------------------------------------------


def MAKE_CELL(interp: Interpreter, frame: Frame, name: str) -> None:
    value = frame.locals.pop(name, MISSING)
    frame.cells[name] = interp.make_cell() if value is MISSING else interp.make_cell(value)


def COPY_FREE_VARS(interp: Interpreter, frame: Frame, arg: int) -> None:
    """The frame has its closure's cells from the start."""


def LOAD_CLOSURE(interp: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(frame.cells[name])


def LOAD_DEREF(interp: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(interp.load_cell(frame.cells[name], name))


def STORE_DEREF(interp: Interpreter, frame: Frame, name: str) -> None:
    interp.store_cell(frame.cells[name], frame.stack.pop())


def DELETE_DEREF(interp: Interpreter, frame: Frame, name: str) -> None:
    cell = frame.cells[name]
    if id(cell) not in interp.inside_cells:
        raise Break("LW103", f"del of the outside variable {name}")
    del cell.cell_contents


def MAKE_FUNCTION(interp: Interpreter, frame: Frame, flags: int) -> None:
    code = frame.stack.pop()
    closure = frame.stack.pop() if flags & 8 else None
    annotations = frame.stack.pop() if flags & 4 else None
    kwdefaults = frame.stack.pop() if flags & 2 else None
    defaults = frame.stack.pop() if flags & 1 else None
    function = types.FunctionType(code, frame.globals, code.co_name, defaults, closure)
    function.__qualname__ = code.co_qualname
    function.__kwdefaults__ = kwdefaults
    if annotations is not None:
        function.__annotations__ = _annotations(annotations)
    frame.stack.append(interp.add_function(function))


def _annotations(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    flat = cast(tuple[Any, ...], value)
    return dict(zip(flat[::2], flat[1::2], strict=True))


# --- operators --------------------------------------------------------------------------------------------------------


def UNARY_NEGATIVE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(unary(interp, use(interp, frame), "__neg__"))


def UNARY_INVERT(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(unary(interp, use(interp, frame), "__invert__"))


def UNARY_NOT(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(not truth(interp, use(interp, frame)))


def unary(interp: Interpreter, value: Any, name: str) -> Any:
    """The unary operator with this dunder name."""
    interp.recorder.location = interp.user_location()
    method, _ = lookup_type(type(value), name)
    if type(value) is not TraceTensor and isinstance(method, types.FunctionType):
        return interp.call(method, [value], {})
    if name == "__neg__":
        return -value
    return +value if name == "__pos__" else ~value


def BINARY_OP(interp: Interpreter, frame: Frame, arg: int) -> None:
    right = use(interp, frame)
    frame.stack.append(binary(interp, arg, use(interp, frame), right))


def IS_OP(interp: Interpreter, frame: Frame, invert: int) -> None:
    right, left = frame.stack.pop(), frame.stack.pop()
    if left is None or right is None:
        # `x is None` needs no more of x than whether it is None; a tensor or object is not lifted or read for it.
        left, right = _none_test(interp, left), _none_test(interp, right)
    else:
        left, right = interp.force(left), interp.force(right)
        _guard_distinct(interp, left, right)
    frame.stack.append((_identity(interp, left) is _identity(interp, right)) != bool(invert))


def _none_test(interp: Interpreter, value: Any) -> Any:
    if type(value) is not Lazy:
        return value
    if value.value is None:
        return interp.force(value)
    interp.guards.add(value.source, "type", type(value.value))
    return value.value


def _identity(interp: Interpreter, value: Any) -> Any:
    return interp.outside.original(value)


def _guard_distinct(interp: Interpreter, left: Any, right: Any) -> None:
    """Two arguments that are not one object now must not be one on a later call either."""
    if left is right:
        return
    mine, other = interp.outside.of_trace.get(id(left)), interp.outside.of_trace.get(id(right))
    if mine is not None and other is not None and not (mine.bound and other.bound):
        interp.guards.add(mine.source, "distinct", other.source)
    first, second = interp.outside.entry(left), interp.outside.entry(right)
    if first is not None and second is not None and not (first.known and second.known):
        interp.guards.add(first.source, "distinct", second.source)


def CONTAINS_OP(interp: Interpreter, frame: Frame, invert: int) -> None:
    container = use(interp, frame)
    found = contains(interp, use(interp, frame), container)
    frame.stack.append(found != bool(invert))


def BINARY_SUBSCR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    key = use(interp, frame)
    frame.stack.append(get_item(interp, use(interp, frame), key))


def STORE_SUBSCR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    value, container, key = (interp.force(v) for v in frame.pop_many(3))
    set_item(interp, container, key, value)


def DELETE_SUBSCR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    container, key = use_many(interp, frame, 2)
    delete_item(interp, container, key)


def STORE_ATTR(interp: Interpreter, frame: Frame, name: str) -> None:
    obj = use(interp, frame)
    store_attr(interp, obj, name, use(interp, frame))


def DELETE_ATTR(interp: Interpreter, frame: Frame, name: str) -> None:
    delete_attr(interp, use(interp, frame), name)


# --- containers -------------------------------------------------------------------------------------------------------


def BUILD_TUPLE(interp: Interpreter, frame: Frame, count: int) -> None:
    if len(interp.frames) == 1 and frame.decoded.instructions[frame.ip].name == "RETURN_VALUE":
        # The region's result: what was only passed through stays unread.
        frame.stack.append(tuple(frame.pop_many(count)))
        return
    frame.stack.append(tuple(use_many(interp, frame, count)))


def BUILD_LIST(interp: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(use_many(interp, frame, count))


def BUILD_SET(interp: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(set(use_many(interp, frame, count)))


def BUILD_MAP(interp: Interpreter, frame: Frame, count: int) -> None:
    flat = use_many(interp, frame, 2 * count)
    frame.stack.append(dict(zip(flat[::2], flat[1::2], strict=True)))


def BUILD_CONST_KEY_MAP(interp: Interpreter, frame: Frame, count: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, use_many(interp, frame, count), strict=True)))


def BUILD_STRING(interp: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append("".join(frame.pop_many(count)))


def BUILD_SLICE(interp: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(slice(*use_many(interp, frame, count)))


def FORMAT_VALUE(interp: Interpreter, frame: Frame, flags: int) -> None:
    spec = use(interp, frame) if flags & 4 else ""
    value = use(interp, frame)
    conversion = flags & 3
    if conversion:
        value = interp.call((str, repr, ascii)[conversion - 1], [value], {})
    elif not spec and type(value) not in CONSTANTS:
        value = interp.call(str, [value], {})
    frame.stack.append(format(value, spec))


def LIST_APPEND(interp: Interpreter, frame: Frame, depth: int) -> None:
    value = use(interp, frame)
    frame.stack[-depth].append(value)


def SET_ADD(interp: Interpreter, frame: Frame, depth: int) -> None:
    value = use(interp, frame)
    frame.stack[-depth].add(value)


def MAP_ADD(interp: Interpreter, frame: Frame, depth: int) -> None:
    key, value = use_many(interp, frame, 2)
    frame.stack[-depth][key] = value


def LIST_EXTEND(interp: Interpreter, frame: Frame, depth: int) -> None:
    items = use(interp, frame)
    frame.stack[-depth].extend(iterate(interp, items))


def SET_UPDATE(interp: Interpreter, frame: Frame, depth: int) -> None:
    items = use(interp, frame)
    frame.stack[-depth].update(iterate(interp, items))


def LIST_TO_TUPLE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(tuple(frame.stack.pop()))


def DICT_UPDATE(interp: Interpreter, frame: Frame, depth: int) -> None:
    items = use(interp, frame)
    frame.stack[-depth].update(plain_mapping(interp, items))


def DICT_MERGE(interp: Interpreter, frame: Frame, depth: int) -> None:
    items = plain_mapping(interp, use(interp, frame))
    target = frame.stack[-depth]
    for key in items:
        if key in target:
            raise TypeError(f"got multiple values for keyword argument {key!r}")
    target.update(items)


def plain_mapping(interp: Interpreter, value: Any) -> dict[Any, Any]:
    """Any mapping as a dict."""
    if type(value) is dict:
        return cast(dict[Any, Any], value)
    if not hasattr(type(value), "keys"):
        raise TypeError(f"{type(value).__name__!r} object is not a mapping")
    keys = interp.call(load_attr(interp, value, "keys"), [], {})
    return {key: get_item(interp, value, key) for key in iterate(interp, keys)}


def UNPACK_SEQUENCE(interp: Interpreter, frame: Frame, count: int) -> None:
    items = list(iterate(interp, use(interp, frame)))
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    if len(items) > count:
        raise ValueError(f"too many values to unpack (expected {count})")
    frame.stack.extend(reversed(items))


def UNPACK_EX(interp: Interpreter, frame: Frame, counts: int) -> None:
    before, after = counts & 0xFF, counts >> 8
    items = list(iterate(interp, use(interp, frame)))
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    middle = items[before : len(items) - after]
    tail = items[len(items) - after :]
    frame.stack.extend(reversed([*items[:before], middle, *tail]))


# --- iteration --------------------------------------------------------------------------------------------------------


def GET_ITER(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(get_iter(interp, use(interp, frame)))


def GET_YIELD_FROM_ITER(interp: Interpreter, frame: Frame, arg: Any) -> None:
    value = use(interp, frame)
    frame.stack.append(value if type(value) is Generator else get_iter(interp, value))


def RETURN_GENERATOR(interp: Interpreter, frame: Frame, arg: Any) -> Signal:
    frame.value = interp.make_generator(frame)
    return Signal.RETURN


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


def FOR_ITER(interp: Interpreter, frame: Frame, target: int) -> None:
    try:
        frame.stack.append(next_item(interp, frame.stack[-1]))
    except StopIteration:
        frame.stack.pop()
        frame.ip = target


# --- jumps ------------------------------------------------------------------------------------------------------------


def JUMP_FORWARD(interp: Interpreter, frame: Frame, target: int) -> None:
    frame.ip = target


JUMP_BACKWARD = JUMP_FORWARD
JUMP_BACKWARD_NO_INTERRUPT = JUMP_FORWARD


def POP_JUMP_IF_TRUE(interp: Interpreter, frame: Frame, target: int) -> None:
    value = frame.stack.pop()
    if value is True or (value is not False and truth(interp, interp.force(value))):
        frame.ip = target


def POP_JUMP_IF_FALSE(interp: Interpreter, frame: Frame, target: int) -> None:
    value = frame.stack.pop()
    if value is False or (value is not True and not truth(interp, interp.force(value))):
        frame.ip = target


def POP_JUMP_IF_NONE(interp: Interpreter, frame: Frame, target: int) -> None:
    if _none_test(interp, frame.stack.pop()) is None:
        frame.ip = target


def POP_JUMP_IF_NOT_NONE(interp: Interpreter, frame: Frame, target: int) -> None:
    if _none_test(interp, frame.stack.pop()) is not None:
        frame.ip = target


# --- calls, returns ---------------------------------------------------------------------------------------------------


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
    stack.append(interp.call(function, args, kwargs))


def CALL_FUNCTION_EX(interp: Interpreter, frame: Frame, flags: int) -> None:
    kwargs = plain_mapping(interp, use(interp, frame)) if flags & 1 else {}
    args = list(iterate(interp, use(interp, frame)))
    function = frame.stack.pop()
    if frame.stack and frame.stack[-1] is NULL:
        frame.stack.pop()
    frame.stack.append(interp.call(function, args, dict(kwargs)))


def RETURN_VALUE(interp: Interpreter, frame: Frame, arg: Any) -> Signal:
    frame.value = frame.stack.pop()
    return Signal.RETURN


def YIELD_VALUE(interp: Interpreter, frame: Frame, arg: Any) -> Signal:
    frame.value = use(interp, frame)
    return Signal.YIELD


def RESUME(interp: Interpreter, frame: Frame, arg: Any) -> None:
    pass


# --- exceptions -------------------------------------------------------------------------------------------------------


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
    if len(values) == 2:
        cause = interp.call(values[1], [], {}) if isinstance(values[1], type) else values[1]
        raise error from cause
    raise error


def RERAISE(interp: Interpreter, frame: Frame, depth: int) -> None:
    error = cast(BaseException, frame.stack.pop())
    raise error


def PUSH_EXC_INFO(interp: Interpreter, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    frame.stack.append(frame.handled)
    frame.stack.append(error)
    frame.handled = error


def POP_EXCEPT(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.handled = frame.stack.pop()


def CHECK_EXC_MATCH(interp: Interpreter, frame: Frame, arg: Any) -> None:
    kinds = use(interp, frame)
    frame.stack.append(isinstance(frame.stack[-1], kinds))


def BEFORE_WITH(interp: Interpreter, frame: Frame, arg: Any) -> None:
    manager = use(interp, frame)
    for name in ("__enter__", "__exit__"):
        if lookup_type(type(manager), name)[0] is MISSING:
            raise TypeError(
                f"{type(manager).__name__!r} object does not support the context manager protocol"
            )
    leave = load_attr(interp, manager, "__exit__")
    enter = load_attr(interp, manager, "__enter__")
    frame.stack.append(leave)
    frame.stack.append(interp.call(enter, [], {}))


def WITH_EXCEPT_START(interp: Interpreter, frame: Frame, arg: Any) -> None:
    """Stack: ..., exit, lasti, previous exception, exception."""
    error = frame.stack[-1]
    leave = frame.stack[-4]
    frame.stack.append(interp.call(leave, [type(error), error, error.__traceback__], {}))


# --- imports ----------------------------------------------------------------------------------------------------------


def IMPORT_NAME(interp: Interpreter, frame: Frame, name: str) -> None:
    level, wanted = use_many(interp, frame, 2)
    package = frame.globals.get("__package__") or ""
    full = name if not level else ".".join([*package.split(".")[: len(package.split(".")) - level + 1], name])
    if full.rstrip(".") not in sys.modules:
        raise Break("LW109", full)
    module = __import__(name, frame.globals, None, wanted, level)
    frame.stack.append(interp.outside.known(module, module.__name__))


def IMPORT_FROM(interp: Interpreter, frame: Frame, name: str) -> None:
    module = frame.stack[-1]
    try:
        frame.stack.append(load_attr(interp, module, name))
    except AttributeError:
        full = f"{module.__name__}.{name}"
        if full not in sys.modules:
            raise ImportError(f"cannot import name {name!r} from {module.__name__!r}") from None
        frame.stack.append(interp.outside.known(sys.modules[full], full))


def LOAD_BUILD_CLASS(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(builtins.__build_class__)


# --- pattern matching -------------------------------------------------------------------------------------------------


def GET_LEN(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(interp.call(len, [frame.stack[-1]], {}))


def MATCH_MAPPING(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(isinstance(interp.force(frame.stack[-1]), collections.abc.Mapping))


def MATCH_SEQUENCE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    value = interp.force(frame.stack[-1])
    frame.stack.append(
        isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes, bytearray))
    )


def MATCH_KEYS(interp: Interpreter, frame: Frame, arg: Any) -> None:
    keys, subject = frame.stack[-1], interp.force(frame.stack[-2])
    found = all(contains(interp, key, subject) for key in keys)
    frame.stack.append(tuple(get_item(interp, subject, key) for key in keys) if found else None)


def MATCH_CLASS(interp: Interpreter, frame: Frame, count: int) -> None:
    subject, cls, names = use_many(interp, frame, 3)
    if not interp.call(isinstance, [subject, cls], {}):
        frame.stack.append(None)
        return
    positional = cast(tuple[str, ...], getattr(cls, "__match_args__", ()))
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


def refuse(name: str) -> Handler:
    """The handler of a refused opcode."""

    def handler(interp: Interpreter, frame: Frame, arg: Any) -> None:
        raise Break("LW115", name)

    return handler


# Refused in all versions, with the reason.
REFUSED: dict[str, str] = {
    "GET_AITER": "asynchronous code is not captured",
    "GET_ANEXT": "asynchronous code is not captured",
    "GET_AWAITABLE": "asynchronous code is not captured",
    "END_ASYNC_FOR": "asynchronous code is not captured",
    "BEFORE_ASYNC_WITH": "asynchronous code is not captured",
    "CHECK_EG_MATCH": "exception groups are not captured",
    "DELETE_GLOBAL": "deleting a global is not held back",
    "DELETE_NAME": "only found in module and class bodies",
    "LOAD_NAME": "only found in module and class bodies",
    "STORE_NAME": "only found in module and class bodies",
    "SETUP_ANNOTATIONS": "only found in module and class bodies",
}

COMMON: dict[str, Handler] = {
    name: handler
    for name, handler in globals().copy().items()
    if name.isupper() and callable(handler) and name not in ("NULL", "MISSING")
}


def jump_compare(symbols: tuple[str, ...]) -> Handler:
    """COMPARE_OP, whose argument indexes `symbols`."""

    def COMPARE_OP(interp: Interpreter, frame: Frame, arg: int) -> None:
        right = use(interp, frame)
        frame.stack.append(compare(interp, symbols[arg], use(interp, frame), right))

    return COMPARE_OP
