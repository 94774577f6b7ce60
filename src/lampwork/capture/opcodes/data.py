"""Instructions that move, combine and build values, the same in CPython 3.11 and 3.12.

A handler gets the interpreter, the frame and the decoded argument; it returns None, or a Signal to leave the frame.
Handlers that only move values keep them unread (`Lazy`); those that use a value force it.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from lampwork.capture.model.errors import Break
from lampwork.capture.model.frame import Frame
from lampwork.capture.model.values import NULL
from lampwork.capture.opcodes.table import Opcodes
from lampwork.capture.semantics.appends import load, load_global
from lampwork.capture.semantics.attribute_writes import delete_attr, store_attr
from lampwork.capture.semantics.attributes import MISSING
from lampwork.capture.semantics.dtensors import call_distributed
from lampwork.capture.semantics.iteration import native_iterable, native_iterator, walk
from lampwork.capture.semantics.keys import check_key, checked, guard_distinct
from lampwork.capture.semantics.mappings import plain_mapping
from lampwork.capture.semantics.operands import (
    added_later,
    annotations_of,
    begun,
    called_name,
    format_value,
    joined,
    none_test,
    text_of,
    unpacked,
    use,
    use_many,
)
from lampwork.capture.semantics.protocols import binary, contains, delete_item, get_item, set_item, truth
from lampwork.capture.semantics.sequences import set_operand
from lampwork.capture.semantics.symbolic import fixed, operate
from lampwork.graph.distributed import is_dtensor
from lampwork.standard import functools, itertools, operator

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

OPCODES = Opcodes()

# --- moving values ----------------------------------------------------------------------------------------------------


@OPCODES.handles
def NOP(interp: Interpreter, frame: Frame, arg: Any) -> None:
    pass


@OPCODES.handles
def POP_TOP(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.pop()


@OPCODES.handles
def PUSH_NULL(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(NULL)


@OPCODES.handles
def SWAP(interp: Interpreter, frame: Frame, arg: int) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


@OPCODES.handles
def COPY(interp: Interpreter, frame: Frame, arg: int) -> None:
    frame.stack.append(frame.stack[-arg])


@OPCODES.handles
def LOAD_CONST(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(arg)


@OPCODES.handles
def LOAD_FAST(interp: Interpreter, frame: Frame, name: str) -> None:
    try:
        frame.stack.append(frame.locals[name])
    except KeyError:
        cell = frame.cells.get(name)
        if cell is None:
            raise _unbound(name) from None
        frame.stack.append(cell)


@OPCODES.handles
def STORE_FAST(interp: Interpreter, frame: Frame, name: str) -> None:
    frame.locals[name] = frame.stack.pop()


@OPCODES.handles
def DELETE_FAST(interp: Interpreter, frame: Frame, name: str) -> None:
    if name not in frame.locals:
        raise _unbound(name)
    del frame.locals[name]


@OPCODES.handles
def LOAD_GLOBAL(interp: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    name, push_null = arg
    if push_null:
        frame.stack.append(NULL)
    frame.stack.append(load_global(interp, frame, name))


@OPCODES.handles
def STORE_GLOBAL(interp: Interpreter, frame: Frame, name: str) -> None:
    interp.store_global(frame, name, frame.stack.pop())


@OPCODES.handles
def LOAD_ASSERTION_ERROR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(AssertionError)


# --- cells ------------------------------------------------------------------------------------------------------------


@OPCODES.handles
def MAKE_CELL(interp: Interpreter, frame: Frame, name: str) -> None:
    value = frame.locals.pop(name, MISSING)
    frame.cells[name] = interp.make_cell() if value is MISSING else interp.make_cell(value)


@OPCODES.handles
def COPY_FREE_VARS(interp: Interpreter, frame: Frame, arg: int) -> None:
    """The frame has its closure's cells from the start."""


@OPCODES.handles
def LOAD_CLOSURE(interp: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(frame.cells[name])


@OPCODES.handles
def LOAD_DEREF(interp: Interpreter, frame: Frame, name: str) -> None:
    cell = frame.cells[name]
    held = functools.partial(getattr, cell, "cell_contents", None)
    frame.stack.append(load(interp, frame, held, lambda: _load_cell(interp, frame, name)))


def _load_cell(interp: Interpreter, frame: Frame, name: str) -> Any:
    """What a cell holds.

    Raises:
        NameError: it is empty; UnboundLocalError if the cell is the function's own variable.
    """
    try:
        return interp.load_cell(frame.cells[name], name)
    except NameError:
        if name in frame.decoded.code.co_freevars:
            raise
        raise _unbound(name) from None


def _unbound(name: str) -> UnboundLocalError:
    return UnboundLocalError(f"cannot access local variable {name!r} where it is not associated with a value")


@OPCODES.handles
def STORE_DEREF(interp: Interpreter, frame: Frame, name: str) -> None:
    interp.store_cell(frame.cells[name], frame.stack.pop())


@OPCODES.handles
def DELETE_DEREF(interp: Interpreter, frame: Frame, name: str) -> None:
    cell = frame.cells[name]
    if id(cell) not in interp.inside_cells:
        raise Break("LW103", f"del of the outside variable {name}")
    _load_cell(interp, frame, name)
    del cell.cell_contents


@OPCODES.handles
def MAKE_FUNCTION(interp: Interpreter, frame: Frame, flags: int) -> None:
    code = frame.stack.pop()
    closure = frame.stack.pop() if flags & 8 else None
    annotations = use(interp, frame) if flags & 4 else None
    kwdefaults = use(interp, frame) if flags & 2 else None
    defaults = use(interp, frame) if flags & 1 else None
    function = new_function(interp, frame, code, closure)
    function.__defaults__ = defaults
    function.__kwdefaults__ = kwdefaults
    if annotations is not None:
        function.__annotations__ = annotations_of(annotations)
    frame.stack.append(function)


def new_function(
    interp: Interpreter,
    frame: Frame,
    code: types.CodeType,
    closure: tuple[types.CellType, ...] | None,
    like: types.FunctionType | None = None,
) -> types.FunctionType:
    """A function that the region defines, with the defaults and annotations of `like`."""
    function = types.FunctionType(code, frame.globals, code.co_name, None, closure)
    function.__qualname__ = code.co_qualname
    if like is not None:
        function.__defaults__ = like.__defaults__
        function.__kwdefaults__ = like.__kwdefaults__
        function.__annotations__ = like.__annotations__
    return interp.add_function(function)


# --- operators --------------------------------------------------------------------------------------------------------


@OPCODES.handles
def UNARY_NEGATIVE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(unary(interp, use(interp, frame), "__neg__"))


@OPCODES.handles
def UNARY_INVERT(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(unary(interp, use(interp, frame), "__invert__"))


@OPCODES.handles
def UNARY_NOT(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack.append(not truth(interp, use(interp, frame)))


_UNARY = {"__neg__": operator.neg, "__pos__": operator.pos, "__invert__": operator.invert}


def unary(interp: Interpreter, value: Any, name: str) -> Any:
    """The unary operator with this dunder name."""
    if type(value) is torch.SymInt or type(value) is torch.SymFloat:
        return operate(_UNARY[name], value)
    if is_dtensor(type(value)):
        return call_distributed(interp, _UNARY[name], [value], {})
    method = interp.python_method(type(value), name)
    if method is not None:
        return interp.call(method, [value], {})
    if name == "__neg__":
        return -value
    return +value if name == "__pos__" else ~value


@OPCODES.handles
def BINARY_OP(interp: Interpreter, frame: Frame, arg: int) -> None:
    right = use(interp, frame)
    frame.stack.append(binary(interp, arg, use(interp, frame), right))


@OPCODES.handles
def IS_OP(interp: Interpreter, frame: Frame, invert: int) -> None:
    right, left = frame.stack.pop(), frame.stack.pop()
    if left is None or right is None:
        # `x is None` needs no more of x than whether it is None; a tensor or object is not lifted or read for it.
        left, right = none_test(interp, left), none_test(interp, right)
    else:
        left, right = interp.force(left), interp.force(right)
        guard_distinct(interp, left, right)
    frame.stack.append((_identity(interp, left) is _identity(interp, right)) != bool(invert))


def _identity(interp: Interpreter, value: Any) -> Any:
    return interp.environment.original(fixed(value))


@OPCODES.handles
def CONTAINS_OP(interp: Interpreter, frame: Frame, invert: int) -> None:
    container = use(interp, frame)
    found = contains(interp, use(interp, frame), container)
    frame.stack.append(found != bool(invert))


@OPCODES.handles
def BINARY_SUBSCR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    key = use(interp, frame)
    frame.stack.append(get_item(interp, use(interp, frame), key))


@OPCODES.handles
def STORE_SUBSCR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    value, container, key = (interp.force(v) for v in frame.pop_many(3))
    set_item(interp, container, key, value)


@OPCODES.handles
def DELETE_SUBSCR(interp: Interpreter, frame: Frame, arg: Any) -> None:
    container, key = use_many(interp, frame, 2)
    delete_item(interp, container, key)


@OPCODES.handles
def STORE_ATTR(interp: Interpreter, frame: Frame, name: str) -> None:
    obj = use(interp, frame)
    store_attr(interp, obj, name, use(interp, frame))


@OPCODES.handles
def DELETE_ATTR(interp: Interpreter, frame: Frame, name: str) -> None:
    delete_attr(interp, use(interp, frame), name)


# --- containers -------------------------------------------------------------------------------------------------------


@OPCODES.handles
def BUILD_TUPLE(interp: Interpreter, frame: Frame, count: int) -> None:
    if len(interp.frames) == 1 and frame.decoded.instructions[frame.ip].name == "RETURN_VALUE":
        # The region's result: what was only passed through stays unread.
        frame.stack.append(tuple(frame.pop_many(count)))
        return
    frame.stack.append(tuple(use_many(interp, frame, count)))


@OPCODES.handles
def BUILD_LIST(interp: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(use_many(interp, frame, count))


@OPCODES.handles
def BUILD_SET(interp: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(set(checked(interp, use_many(interp, frame, count))))


@OPCODES.handles
def BUILD_MAP(interp: Interpreter, frame: Frame, count: int) -> None:
    flat = use_many(interp, frame, 2 * count)
    frame.stack.append(dict(zip(checked(interp, flat[::2]), flat[1::2], strict=True)))


@OPCODES.handles
def BUILD_CONST_KEY_MAP(interp: Interpreter, frame: Frame, count: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, use_many(interp, frame, count), strict=True)))


@OPCODES.handles
def BUILD_STRING(interp: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(joined(interp, frame.pop_many(count)))


@OPCODES.handles
def BUILD_SLICE(interp: Interpreter, frame: Frame, count: int) -> None:
    frame.stack.append(slice(*use_many(interp, frame, count)))


@OPCODES.handles
def FORMAT_VALUE(interp: Interpreter, frame: Frame, flags: int) -> None:
    """`flags`: 1 to 3 for str, repr or ascii first; 4 if a format specification is on top of the stack."""
    spec = use(interp, frame) if flags & 4 else ""
    value = use(interp, frame)

    def write() -> str:
        shown = interp.call((str, repr, ascii)[(flags & 3) - 1], [value], {}) if flags & 3 else value
        return format_value(interp, shown, spec)

    frame.stack.append(text_of(interp, value, write, spec, converted=bool(flags & 3)))


@OPCODES.handles
def LIST_APPEND(interp: Interpreter, frame: Frame, depth: int) -> None:
    value = use(interp, frame)
    if not added_later(interp, frame, depth, list.append, value):
        begun(interp, frame, depth).append(value)


@OPCODES.handles
def SET_ADD(interp: Interpreter, frame: Frame, depth: int) -> None:
    value = use(interp, frame)
    check_key(interp, value, ())
    if not added_later(interp, frame, depth, set.add, value):
        begun(interp, frame, depth).add(value)


@OPCODES.handles
def MAP_ADD(interp: Interpreter, frame: Frame, depth: int) -> None:
    key, value = use_many(interp, frame, 2)
    check_key(interp, key, ())
    if not added_later(interp, frame, depth, dict.__setitem__, key, value):
        begun(interp, frame, depth)[key] = value


@OPCODES.handles
def LIST_EXTEND(interp: Interpreter, frame: Frame, depth: int) -> None:
    items = use(interp, frame)
    kind = type(items)
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise TypeError(f"Value after * must be an iterable, not {kind.__name__}")
    begun(interp, frame, depth).extend(native_iterable(interp, items))


@OPCODES.handles
def SET_UPDATE(interp: Interpreter, frame: Frame, depth: int) -> None:
    items = use(interp, frame)
    begun(interp, frame, depth).update(set_operand(interp, items))


@OPCODES.handles
def LIST_TO_TUPLE(interp: Interpreter, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = tuple(begun(interp, frame, 1))


@OPCODES.handles
def DICT_UPDATE(interp: Interpreter, frame: Frame, depth: int) -> None:
    items = use(interp, frame)
    begun(interp, frame, depth).update(plain_mapping(interp, items))


@OPCODES.handles
def DICT_MERGE(interp: Interpreter, frame: Frame, depth: int) -> None:
    value = use(interp, frame)
    kind = type(value)
    if not hasattr(kind, "keys"):
        name = called_name(interp, frame, depth + 2)
        raise TypeError(f"{name} argument after ** must be a mapping, not {kind.__name__}")
    items = plain_mapping(interp, value)
    target = begun(interp, frame, depth)
    for key in items:
        if key in target:
            name = called_name(interp, frame, depth + 2)
            raise TypeError(f"{name} got multiple values for keyword argument {key!r}")
    target.update(items)


# What is too long to be unpacked, and said to be how long.
_COUNTED: tuple[type, ...] = (list, tuple, dict) if sys.version_info >= (3, 14) else ()


@OPCODES.handles
def UNPACK_SEQUENCE(interp: Interpreter, frame: Frame, count: int) -> None:
    value = use(interp, frame)
    items = list(itertools.islice(walk(interp, unpacked(interp, value)), count + 1))
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    if len(items) > count:
        got = f", got {interp.call(len, [value], {})}" if type(value) in _COUNTED else ""
        raise ValueError(f"too many values to unpack (expected {count}{got})")
    frame.stack.extend(reversed(items))


@OPCODES.handles
def UNPACK_EX(interp: Interpreter, frame: Frame, counts: int) -> None:
    before, after = counts & 0xFF, counts >> 8
    iterator = unpacked(interp, use(interp, frame))
    items = list(itertools.islice(walk(interp, iterator), before))
    if len(items) == before:
        # Python makes a list of the iterator, which is asked for an iterator itself.
        items += list(native_iterator(interp, iterator))
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    middle = items[before : len(items) - after]
    tail = items[len(items) - after :]
    frame.stack.extend(reversed([*items[:before], middle, *tail]))
