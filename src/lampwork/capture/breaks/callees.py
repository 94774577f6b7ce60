"""The callee that a graph break lies in is called in a compiled version of its own: both remainders are compiled."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from lampwork.capture.breaks.assemble import NULL_ABOVE, Point
from lampwork.capture.breaks.resume import Resume
from lampwork.capture.calls import torch_calls
from lampwork.capture.model.flow import live_at
from lampwork.capture.model.frame import SUBSCRIPT, Frame, Instruction, bind_arguments, decode
from lampwork.capture.model.region import Arg, Kwarg
from lampwork.capture.model.values import NULL, Lazy
from lampwork.capture.semantics.attributes import MISSING, load_attr
from lampwork.frames import Unwatched
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_PROLOGUE = frozenset({"COPY_FREE_VARS", "MAKE_CELL", "RESUME"})


def compiled_resume(interp: Interpreter, resume: Resume) -> Callable[..., Any]:
    """The compiled form of a resume function; itself if nothing is compiled."""
    compile_resume = interp.options.compile_resume
    if compile_resume is None:
        return resume
    with Unwatched():
        return compile_resume(resume)


def replace_callee(interp: Interpreter, frame: Frame, operands: list[Any], *, compiles: bool) -> bool:
    """Put what stands in for the function that the current instruction calls in place of it, or its compiled version.

    `compiles`: whether a compiled version is wanted, as the break lies inside of the function.

    Returns whether the instruction has become another: a call of the first operand with the others, by position.
    """
    if interp.options.compile_function is None:
        return False
    instruction = frame.decoded.instructions[frame.ip]
    swaps = NULL_ABOVE and instruction.name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
    if swaps and operands[1] is NULL:
        operands[:2] = [NULL, operands[0]]
    called = _replace(interp, instruction, operands, compiles)
    if swaps and not called and operands[0] is NULL:
        operands[:2] = [operands[1], NULL]
    return called


def _replace(interp: Interpreter, instruction: Instruction, operands: list[Any], compiles: bool) -> bool:
    """As `replace_callee`; a NULL lies below the function that it stands for a missing receiver of."""
    if instruction.name == "CALL":
        return _replace_in_call(interp, operands, instruction.arg[1], compiles)
    if instruction.name == "CALL_KW":
        names = operands.pop()
        called = _replace_in_call(interp, operands, names, compiles)
        if not called:
            operands.append(names)
        return called
    if instruction.name == "CALL_FUNCTION_EX" and operands[0] is NULL:
        function, receiver = _function_of(interp, operands[1])
        compiled = _compiled(interp, function, compiles)
        if compiled is not None:
            operands[1] = compiled if receiver is NULL else types.MethodType(compiled, receiver)
        return False
    if instruction.name in ("LOAD_ATTR", "LOAD_METHOD"):
        name = instruction.arg[0] if isinstance(instruction.arg, tuple) else instruction.arg
        found = _of_class(interp, _read(interp, operands[0]), name)
        function = found.fget if isinstance(found, property) else None
    elif instruction.name == "BINARY_SUBSCR" or (
        instruction.name == "BINARY_OP" and instruction.arg == SUBSCRIPT
    ):
        function = _of_class(interp, _read(interp, operands[0]), "__getitem__")
    else:
        return False
    compiled = _compiled(interp, function, compiles)
    if compiled is not None:
        operands.insert(0, compiled)
    return compiled is not None


def _read(interp: Interpreter, value: Any) -> Any:
    return interp.force(value) if type(value) is Lazy else value


def _of_class(interp: Interpreter, value: Any, name: str) -> Any:
    """What the class of an object has under a name, if it is Python code, guarded."""
    kind = interp.environment.python_type(value)
    found, _ = interp.lookup(kind, name)
    if isinstance(found, types.FunctionType | property) and load_attr(interp, kind, name) is found:
        return found
    return None


def _replace_in_call(
    interp: Interpreter, operands: list[Any], kwnames: tuple[str, ...], compiles: bool
) -> bool:
    # Either NULL and a function, or a function and its first argument.
    place = 1 if operands[0] is NULL else 0
    function, receiver = _function_of(interp, operands[place])
    if compiles and id(function) in interp.inside_functions:
        given = operands[place + 1 :] if receiver is NULL else [receiver, *operands[place + 1 :]]
        split = len(given) - len(kwnames)
        started = _started(interp, function, given[:split], dict(zip(kwnames, given[split:], strict=True)))
        if started is not None:
            operands[:] = started
        return started is not None
    compiled = _compiled(interp, function, compiles)
    if compiled is not None and receiver is NULL:
        operands[place] = compiled
    elif compiled is not None:
        operands[: place + 1] = [compiled, receiver] if place else [types.MethodType(compiled, receiver)]
    return False


def _function_of(interp: Interpreter, value: Any) -> tuple[Any, Any]:
    """The function that a call of this object runs, and what it is called on (NULL: nothing)."""
    function = _read(interp, value)
    if isinstance(function, types.MethodType):
        return function.__func__, function.__self__
    if isinstance(function, types.FunctionType | torch.nn.Module | functools.partial | type):
        return function, NULL
    method = _of_class(interp, function, "__call__")
    return (method, function) if isinstance(method, types.FunctionType) else (function, NULL)


def _compiled(interp: Interpreter, function: Any, compiles: bool) -> Any:
    """What stands in for a function of torch; the compiled version of another outside function, or a module, that is
    the same on every call, if it is wanted; None if there is none."""
    compile_function = interp.options.compile_function
    if id(function) in interp.inside_functions:
        return None
    if isinstance(function, types.FunctionType) and torch_calls.is_only_of_torch(function):
        return _stand_in(interp, function)
    if not compiles:
        return None
    if isinstance(function, types.FunctionType):
        if function.__dict__.get("_torchdynamo_disable"):
            return None
        if function.__module__ in torch_calls.RUN_AS_THEY_ARE or _is_passing(interp, function):
            return None
        interp.environment.register(function)
    elif isinstance(function, functools.partial | torch.nn.Module):
        entry = interp.environment.entry(function)
        if entry is None or not entry.known:
            return None
    else:
        return None
    assert compile_function is not None
    with Unwatched():
        compiled = compile_function(function, interp.whereabouts.within)
    interp.environment.known(compiled, getattr(function, "__qualname__", type(function).__name__))
    return compiled


def _stand_in(interp: Interpreter, function: types.FunctionType) -> Any:
    """What is called in place of a function of torch, such as the step of an optimizer; None if it is called itself."""
    found = None if interp.options.stand_in is None else interp.options.stand_in(function)
    if found is None:
        return None
    interp.environment.register(function)
    return interp.environment.known(found, function.__qualname__)


def _is_passing(interp: Interpreter, function: types.FunctionType) -> bool:
    """Whether a function is one of many that code makes and passes on: each would be compiled, and kept, by itself."""
    if "<locals>" not in function.__qualname__ and function.__name__ != "<lambda>":
        return False
    if interp.environment.differs(function):
        return True
    sources = [
        guard.source for guard in interp.guards.fast if guard.kind == "is" and guard.expected is function
    ]
    return any(_is_argument(source) for source in sources)


def _is_argument(source: Any) -> bool:
    while hasattr(source, "base"):
        source = source.base
    return isinstance(source, Arg | Kwarg)


def _started(
    interp: Interpreter, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]
) -> list[Any] | None:
    """A call of a function that the region made, as a call of what is behind the start of its code: that is the same
    function on every call. None if its code cannot be entered so.

    Gives the function and its arguments.
    """
    decoded = decode(function.__code__, interp.table)
    if decoded.is_generator or decoded.is_async:
        return None
    try:
        values = bind_arguments(function, args, kwargs, interp.force, lambda value, place: value)
    except TypeError:
        return None
    cells = dict(zip(decoded.code.co_freevars, function.__closure__ or (), strict=True))
    index = 0
    while decoded.instructions[index].name in _PROLOGUE:
        instruction = decoded.instructions[index]
        if instruction.name == "MAKE_CELL":
            value = values.pop(instruction.arg, MISSING)
            cells[instruction.arg] = interp.make_cell() if value is MISSING else interp.make_cell(value)
        index += 1
    live = live_at(decoded, index)
    first = decoded.code.co_varnames[:1]
    names = sorted((n for n in live.locals if n in values), key=lambda name: (name not in first, name))
    held = tuple(sorted(name for name in cells if name in live.cells))
    point = Point(index, tuple(names), held, ())
    key = (id(decoded.code), point)
    cache = interp.resume_cache
    found = cache.resumes.get(key)
    if found is None:
        closure = tuple(types.CellType() for _ in decoded.code.co_freevars)
        made = types.FunctionType(decoded.code, function.__globals__, function.__name__, None, closure)
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        found = cache.resumes[key] = compiled_resume(
            interp, Resume(made, decoded, point, cache, starts=True, within=interp.whereabouts.within)
        )
    interp.environment.known(found, function.__qualname__)
    return [found, *(values[name] for name in names), *(cells[name] for name in held)]
