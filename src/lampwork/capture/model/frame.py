"""Code objects decoded once, and the frames that run them."""

from __future__ import annotations

import dis
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from lampwork.capture.model import bytecode
from lampwork.capture.model.within import Within
from lampwork.errors import Location
from lampwork.graph.origin import Place, is_users
from lampwork.locks import new_lock
from lampwork.recent import Recent
from lampwork.records import record

Handler = Callable[[Any, "Frame", Any], Any]


@record
class Instruction:
    """`arg` is what the handler gets: a name, a constant, a number, or for jumps the index of the target."""

    name: str
    arg: Any
    offset: int
    line: int


@record
class Except:
    """An exception-table entry: unwind the stack to `depth`, push the offset if `lasti`, go to `target`."""

    target: int
    depth: int
    lasti: bool


@dataclass(slots=True, eq=False)
class Decoded:
    """A code object, ready to interpret. `steps` are (handler, arg) pairs, as many as `instructions`. `is_users`: it is
    neither torch's nor ours nor Python's."""

    code: types.CodeType
    instructions: tuple[Instruction, ...]
    steps: tuple[tuple[Handler, Any], ...]
    excepts: tuple[Except | None, ...]
    is_generator: bool
    is_async: bool
    is_users: bool
    lines: dict[int, Location] = field(default_factory=dict[int, Location])

    def location(self, index: int) -> Location:
        """The line of an instruction: one object for each line."""
        line = self.instructions[index].line
        found = self.lines.get(line)
        if found is None:
            found = self.lines[line] = Location(self.code.co_filename, line, self.code.co_qualname)
        return found


@record
class Above:
    """The callers of a frame. `stack`: their lines, outermost first. `users`: the innermost one in the user's code."""

    stack: tuple[Location, ...]
    users: Location | None


SUBSCRIPT = 26
"""The argument of BINARY_OP for `container[key]`, from CPython 3.14 on."""

_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
_FOLDED = frozenset({"CACHE", "EXTENDED_ARG", "PRECALL"})
# All others are what their bytes say.
_TAKEN_APART = frozenset(
    {
        *_FOLDED, "KW_NAMES", "CALL", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_SUPER_ATTR", "COMPARE_OP", "CALL_FUNCTION_EX",
    }
)  # fmt: skip
_WHOLE = frozenset(
    opcode for opcode, name in enumerate(dis.opname) if name not in _TAKEN_APART and opcode not in _JUMPS
)


def _comparison(arg: int) -> Any:
    """The number of the operator; from 3.13 on with whether bool() is taken of the result."""
    if sys.version_info >= (3, 13):
        return arg >> 5, bool(arg & 16)
    return arg >> 4 if sys.version_info >= (3, 12) else arg


# The methods of torch's layers come again in every network. A key is valid as long as its value keeps the code.
_recent: Recent[tuple[int, int], Decoded] = Recent(512)
_lock = new_lock()


def decode(code: types.CodeType, table: Mapping[str, Handler]) -> Decoded:
    """Instructions with caches and EXTENDED_ARG folded away, and a call with its KW_NAMES as one CALL.

    The folded CALL starts at the offset of the first of its parts, where a graph break can undo to.

    Args:
        table: what handles each instruction, by name; one table for good.
    """
    key = (id(code), id(table))
    with _lock:
        found = _recent.get(key)
    if found is None:
        found = _decode(code, table)
        with _lock:
            _recent.put(key, found)
    return found


def _decode(code: types.CodeType, table: Mapping[str, Handler]) -> Decoded:
    instructions: list[Instruction] = []
    index_of: dict[int, int] = {}
    kwnames: tuple[str, ...] = ()
    jumps: list[int] = []
    names = dis.opname
    for offset, opcode, number, arg, line in bytecode.instructions(code):
        index_of[offset] = len(instructions)
        name = names[opcode]
        if opcode in _WHOLE:
            instructions.append(Instruction(name, arg, offset, line))
            continue
        if name in _FOLDED:
            continue
        if name == "KW_NAMES":
            kwnames = arg
            continue
        if name == "CALL":
            arg = (number, kwnames)
            kwnames = ()
        elif name == "LOAD_GLOBAL" or (name == "LOAD_ATTR" and sys.version_info >= (3, 12)):
            arg = (arg, bool(cast(int, number) & 1))
        elif name == "LOAD_SUPER_ATTR":
            arg = (arg, bool(cast(int, number) & 1), bool(cast(int, number) & 2))
        elif name == "COMPARE_OP":
            arg = _comparison(cast(int, number))
        elif name == "CALL_FUNCTION_EX" and sys.version_info >= (3, 14):
            arg = 1  # where no mapping is given, NULL lies in its place
        elif opcode in _JUMPS:
            jumps.append(len(instructions))
        instructions.append(Instruction(name, arg, offset, line))
    for index in jumps:
        old = instructions[index]
        instructions[index] = Instruction(old.name, index_of[old.arg], old.offset, old.line)
    excepts: list[Except | None] = [None] * len(instructions)
    for entry in reversed(cast(Any, dis)._parse_exception_table(code)):
        handler = Except(index_of[entry.target], entry.depth, entry.lasti)
        for index, instruction in enumerate(instructions):
            if entry.start <= instruction.offset < entry.end:
                excepts[index] = handler
    return Decoded(
        code,
        tuple(instructions),
        tuple((table[i.name], i.arg) for i in instructions),
        tuple(excepts),
        bool(code.co_flags & inspect.CO_GENERATOR),
        bool(code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)),
        is_users(code.co_filename),
    )


class Frame:
    """One activation of a code object. `cells` holds real cell objects, `locals` everything else by name.

    What `Whereabouts` keeps: `above`, and for the line `seen` in the module `within` what is `shown` of it and the
    `place` of nodes."""

    __slots__ = (
        "above",
        "builtins",
        "cells",
        "decoded",
        "function",
        "globals",
        "handled",
        "ip",
        "locals",
        "pending",
        "place",
        "seen",
        "seen_at",
        "shown",
        "stack",
        "steps",
        "value",
        "within",
    )

    def __init__(
        self,
        decoded: Decoded,
        function: types.FunctionType,
        local_values: dict[str, Any],
        closure: tuple[types.CellType, ...],
    ) -> None:
        self.decoded = decoded
        self.function = function
        self.globals = function.__globals__
        self.builtins = function.__builtins__
        self.locals = local_values
        self.cells: dict[str, types.CellType] = dict(zip(decoded.code.co_freevars, closure, strict=True))
        self.stack: list[Any] = []
        self.ip = 0
        self.value: Any = None
        self.handled: BaseException | None = None
        self.pending: BaseException | None = None
        self.steps = 0
        self.above: Above | None = None
        self.seen: Location | None = None
        self.seen_at = 0
        self.within: Within | None = None
        self.shown: Location | None = None
        self.place: Place | None = None

    @property
    def location(self) -> Location:
        return self.decoded.location(max(self.ip - 1, 0))

    def called(self) -> None:
        """Forget the callers: a generator that goes on may have others."""
        self.above = self.seen = self.shown = self.place = None

    def clear(self) -> None:
        """Let go of all values."""
        self.locals.clear()
        self.cells.clear()
        self.stack.clear()
        self.value = self.handled = self.pending = None

    def pop_many(self, count: int) -> list[Any]:
        """The top `count` values, deepest first."""
        if count == 0:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values


def _binding_error(function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]) -> TypeError:
    """The error, in Python's own words, of arguments that do not fit: raised by a function with the same parameters and
    no body."""
    empty = (lambda: None).__code__
    code = function.__code__.replace(
        co_code=empty.co_code,
        co_consts=empty.co_consts,
        co_exceptiontable=b"",
        co_flags=function.__code__.co_flags
        & ~(inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR),
        co_cellvars=(),
        co_freevars=(),
    )
    stub = types.FunctionType(code, {}, function.__name__, function.__defaults__)
    stub.__qualname__ = function.__qualname__
    stub.__kwdefaults__ = function.__kwdefaults__
    try:
        stub(*args, **kwargs)
    except TypeError as error:
        return error.with_traceback(None)
    return TypeError(f"{function.__qualname__}() does not take these arguments")


def bind_arguments(
    function: types.FunctionType,
    args: list[Any],
    kwargs: dict[str, Any],
    force: Callable[[Any], Any],
    default: Callable[[Any, int | str], Any],
) -> dict[str, Any]:
    """Parameters by name, as Python binds them. What goes into *args and **kwargs is looked into with `force`
    (containers hold no unread values); defaults are read with `default`, which is
    given their place too: a position among `__defaults__`, or a name.

    Raises:
        TypeError: the arguments do not fit the function's parameters.
    """
    code = function.__code__
    names = code.co_varnames
    n_positional = code.co_argcount
    n_named = n_positional + code.co_kwonlyargcount
    bound = dict(zip(names[:n_positional], args, strict=False))
    slot = n_named
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[slot]] = tuple([force(value) for value in args[n_positional:]])
        slot += 1
    elif len(args) > n_positional:
        raise _binding_error(function, args, kwargs)
    extra: dict[str, Any] | None = None
    if code.co_flags & inspect.CO_VARKEYWORDS:
        extra = bound[names[slot]] = {}
    if kwargs:
        named = names[code.co_posonlyargcount : n_named]
        for name, value in kwargs.items():
            if name in named:
                if name in bound:
                    raise _binding_error(function, args, kwargs)
                bound[name] = value
            elif extra is not None:
                extra[name] = force(value)
            else:
                raise _binding_error(function, args, kwargs)
    defaults = function.__defaults__
    if len(args) < n_positional:
        first_default = n_positional - (len(defaults) if defaults else 0)
        for position in range(len(args), n_positional):
            name = names[position]
            if name not in bound:
                if defaults is None or position < first_default:
                    raise _binding_error(function, args, kwargs)
                bound[name] = default(defaults[position - first_default], position - first_default)
    if code.co_kwonlyargcount:
        kwdefaults = function.__kwdefaults__ or {}
        for name in names[n_positional:n_named]:
            if name not in bound:
                if name not in kwdefaults:
                    raise _binding_error(function, args, kwargs)
                bound[name] = default(kwdefaults[name], name)
    return bound
