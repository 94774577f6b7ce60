"""Graph breaks: code that runs one instruction in plain Python and goes on in a resume function.

before (the region ends before the call of `print`; on the stack: NULL, print, y; live: a, y)::

    y = a + 1
    print(y)
    return y * a

after, `continuation` (plain Python) and `resume` (captured in its turn)::

    def continuation(resume, a, y, operand_1, operand_2):
        result = operand_1(operand_2)
        return resume, a, y, result          # what to call next

    def resume(a, y, result):
        <result>             # pushed back on the stack
        POP_TOP
        return y * a

An instruction inside of `try` or `with` has a second resume function, which starts at the exception handler.
"""

from __future__ import annotations

import dis
import sys
import types
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from lampwork import logs, pristine
from lampwork.capture.breaks.assemble import (
    NULL_ABOVE,
    Action,
    ContinuationPlan,
    Point,
    SlotKind,
    continuation_code,
    is_editable,
)
from lampwork.capture.breaks.callees import compiled_resume, replace_callee
from lampwork.capture.breaks.recipe import RecipeBuilder
from lampwork.capture.breaks.resume import Pending, Resume, drive, slot_arguments, slot_kind
from lampwork.capture.model.errors import Break, FrameRefused
from lampwork.capture.model.flow import live_at, reachable, successors
from lampwork.capture.model.frame import Decoded, Frame
from lampwork.capture.model.values import NULL, Lazy

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

# Breaks that a continuation would be noticed at: frames have other variables there, and objects live longer.
_REFUSING = frozenset({"LW121", "LW136"})
# Functions that show a frame's variables, as globals and as attributes of modules.
_LOOKING = frozenset({"locals", "eval", "exec"})
_LOOKING_WITHOUT_ARGUMENTS = frozenset({"vars", "dir"})
_LOOKING_FROM_MODULES = frozenset({"_getframe", "currentframe"})
_BRANCHES = frozenset(
    f"POP_JUMP_{direction}IF_{test}"
    for direction in ("", "FORWARD_", "BACKWARD_")
    for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")
)
_ACTIONS: dict[str, Action] = {
    "BINARY_OP": Action(2, 1),
    "COMPARE_OP": Action(2, 1),
    "CONTAINS_OP": Action(2, 1),
    "IS_OP": Action(2, 1),
    "UNARY_NOT": Action(1, 1),
    "UNARY_NEGATIVE": Action(1, 1),
    "UNARY_POSITIVE": Action(1, 1),
    "UNARY_INVERT": Action(1, 1),
    "TO_BOOL": Action(1, 1),
    "CONVERT_VALUE": Action(1, 1),
    "FORMAT_SIMPLE": Action(1, 1),
    "FORMAT_WITH_SPEC": Action(2, 1),
    "CALL_INTRINSIC_1": Action(1, 1),
    "CALL_INTRINSIC_2": Action(2, 1),
    "BINARY_SUBSCR": Action(2, 1),
    "BINARY_SLICE": Action(3, 1),
    "STORE_SUBSCR": Action(3, 0),
    "STORE_SLICE": Action(4, 0),
    "DELETE_SUBSCR": Action(2, 0),
    "LOAD_ATTR": Action(1, 1),
    "LOAD_SUPER_ATTR": Action(3, 1),
    "LOAD_METHOD": Action(1, 1, gives_null=True),
    "STORE_ATTR": Action(2, 0),
    "DELETE_ATTR": Action(1, 0),
    "GET_ITER": Action(1, 1),
    "FOR_ITER": Action(1, 2, jump="pops"),
    "IMPORT_NAME": Action(2, 1),
    "IMPORT_FROM": Action(1, 2),
    "BEFORE_WITH": Action(1, 2),
    "WITH_EXCEPT_START": Action(0, 1),
    "CHECK_EXC_MATCH": Action(2, 2),
    "GET_LEN": Action(1, 2),
    "MATCH_MAPPING": Action(1, 2),
    "MATCH_SEQUENCE": Action(1, 2),
    "MATCH_KEYS": Action(2, 3),
    "MATCH_CLASS": Action(3, 1),
    "LOAD_FAST": Action(0, 1),
    "LOAD_FAST_BORROW": Action(0, 1),
    "LOAD_BUILD_CLASS": Action(0, 1),
    "LOAD_GLOBAL": Action(0, 1),
    "STORE_GLOBAL": Action(1, 0),
    "DELETE_GLOBAL": Action(0, 0),
    "LIST_TO_TUPLE": Action(1, 1),
    "JUMP_IF_TRUE_OR_POP": Action(1, 0, jump="keeps"),
    "JUMP_IF_FALSE_OR_POP": Action(1, 0, jump="keeps"),
    **dict.fromkeys(_BRANCHES, Action(1, 0, jump="pops")),
}

_JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD")


def can_break(frame: Frame) -> bool:
    """Whether a region can end before the current instruction of the root frame."""
    instruction = frame.decoded.instructions[frame.ip]
    return _action(instruction.name, instruction.arg) is not None and is_editable(frame.decoded.code)


def add_continuation(interp: Interpreter, builder: RecipeBuilder, frame: Frame, stop: Break) -> int:
    """Add the steps that end a region at a graph break; gives the step of the call's result.

    Raises:
        FrameRefused: the frame cannot be rebuilt there.
    """
    decoded, index = frame.decoded, frame.ip
    if stop.code in _REFUSING:
        raise FrameRefused(stop.code, stop.detail, stop.location)
    if _looks_at_itself(decoded, index):
        raise FrameRefused("LW136", decoded.code.co_qualname, stop.location)
    instruction = decoded.instructions[index]
    action = _action(instruction.name, instruction.arg)
    if action is None or not is_editable(decoded.code):
        raise FrameRefused("LW131", str(decoded.location(index)), stop.location)
    operands = frame.stack[len(frame.stack) - action.takes :] if action.takes else []
    below = frame.stack[: len(frame.stack) - action.takes]
    _check_operands(interp, frame, operands, stop)
    if instruction.name == "LOAD_SUPER_ATTR" and not instruction.arg[2] and operands[0] is not super:
        # Something else of that name is called without the operands, and may look for them in the frame.
        raise FrameRefused("LW131", str(decoded.location(index)), stop.location)
    inlined = stop.depth > 1
    called = (inlined or stop.code == "LW123") and replace_callee(interp, frame, operands, compiles=inlined)

    points: list[Point] = []
    kinds: tuple[SlotKind, ...] = tuple(slot_kind(value) for value in below)
    if action.falls_through:
        points.append(_point(frame, index + 1, (*kinds, *_given(action))))
    if action.jump is not None:
        target = instruction.arg
        if instruction.name == "FOR_ITER":
            # Its target is code for iterators that were left on the stack.
            while decoded.instructions[target].name == "END_FOR":
                target += 2 if sys.version_info >= (3, 13) else 1
        points.append(_point(frame, target, (*kinds, "value") if action.jump == "keeps" else kinds))
    handler = decoded.excepts[index]
    if handler is not None:
        if handler.depth > len(below):
            raise FrameRefused("LW131", str(decoded.location(index)), stop.location)
        pushed: tuple[SlotKind, ...] = ("lasti", "value") if handler.lasti else ("value",)
        points.append(_point(frame, handler.target, (*kinds[: handler.depth], *pushed)))
    plan = ContinuationPlan(
        index,
        action,
        tuple(points),
        kinds,
        tuple(slot_kind(value) for value in operands),
        frame.handled is not None,
        handler is not None,
        called,
    )
    resumes = [_resume(interp, frame, point) for point in points]
    continuation = _continuation(interp, frame, plan)

    for context in interp.contexts.entered:
        builder.value(context)
    if pristine.is_grad_enabled() != interp.contexts.grad_enabled:
        builder.call(torch._C._set_grad_enabled, builder.step("const", pristine.is_grad_enabled()))
    values: list[Any] = [frame.cells[n] if n in frame.cells else frame.locals[n] for n in plan.names]
    values += slot_arguments(below, frame.handled)
    values += [value for value in operands if value is not NULL]
    if frame.handled is not None:
        values.append(frame.handled)
    steps = [builder.step("const", value) for value in (continuation, *resumes)]
    steps += [builder.value(value) for value in values]
    if interp.resumed is None:
        run = interp.options.drive or drive
        return builder.call(run, builder.step("const", Pending), *steps)
    return builder.call(Pending, builder.step("tuple", None, tuple(steps)))


def _looks_at_itself(decoded: Decoded, index: int) -> bool:
    """Whether code that may run after an instruction loads a function that shows the variables of its own frame: behind
    a break, those that are not used any more are gone."""
    instructions = decoded.instructions
    for number in reachable(decoded, successors(decoded, index)):
        instruction = instructions[number]
        if instruction.name not in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"):
            continue
        arg = instruction.arg
        name = cast(str, arg[0] if isinstance(arg, tuple) else arg)
        if instruction.name != "LOAD_GLOBAL":
            if name in _LOOKING_FROM_MODULES:
                return True
        elif name in _LOOKING:
            return True
        elif name in _LOOKING_WITHOUT_ARGUMENTS:
            after = instructions[number + 1]
            if after.name == "CALL" and after.arg[0] == 0:
                return True
    return False


def _given(action: Action) -> tuple[SlotKind, ...]:
    """What an instruction leaves on the stack."""
    given: tuple[SlotKind, ...] = ("value",) * action.gives
    if not action.gives_null:
        return given
    return (*given, "null") if NULL_ABOVE else ("null", *given)


def _action(name: str, arg: Any) -> Action | None:
    """What an instruction does; None if a region cannot end before it."""
    if name in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_SUPER_ATTR") and _is_called(arg):
        return replace(_ACTIONS[name], gives_null=True)
    if name in _ACTIONS:
        return _ACTIONS[name]
    if name == "CALL":
        return Action(arg[0] + 2, 1)
    if name == "CALL_KW":
        return Action(arg + 3, 1)
    if name == "CALL_FUNCTION_EX":
        return Action(3 + (arg & 1), 1)
    if name == "UNPACK_SEQUENCE":
        return Action(1, arg)
    if name == "UNPACK_EX":
        return Action(1, (arg & 0xFF) + 1 + (arg >> 8))
    if name == "FORMAT_VALUE":
        return Action(2 if arg & 4 else 1, 1)
    if name in ("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "LIST_APPEND", "SET_ADD"):
        return Action(arg + 1, arg)
    if name == "MAP_ADD":
        return Action(arg + 2, arg)
    if name == "DICT_MERGE":
        return Action(arg + 1, arg)
    if name == "RAISE_VARARGS":
        return Action(arg, 0, falls_through=False)
    return None


def _is_called(arg: Any) -> bool:
    """Whether what is loaded is going to be called."""
    return isinstance(arg, tuple) and bool(cast(tuple[Any, ...], arg)[1])


# What calls of these look at, some of them if they are given nothing, is the frame that they are in.
_OF_THEIR_FRAME = (locals, vars, dir, super, eval, exec)


def _check_operands(interp: Interpreter, frame: Frame, operands: list[Any], stop: Break) -> None:
    """
    Raises:
        FrameRefused: LW136 for a call that looks at the variables of the frame it is in: a continuation has others.
    """
    if frame.decoded.instructions[frame.ip].name != "CALL" or len(operands) > 3:
        return
    function = operands[1] if operands[0] is NULL else operands[0]
    if type(function) is Lazy and any(function.value is one for one in _OF_THEIR_FRAME):
        function = interp.force(function)
    if not isinstance(function, types.BuiltinFunctionType | type):
        return
    given = operands[2:]
    if function in (locals, vars, dir, super) and not given:
        raise FrameRefused("LW136", f"{function.__name__}()", stop.location)
    if function in (eval, exec) and len(given) == 1 and not _is_free_of_locals(frame, interp.force(given[0])):
        raise FrameRefused("LW136", f"{function.__name__}()", stop.location)


def _is_free_of_locals(frame: Frame, source: Any) -> bool:
    """Whether code to be evaluated names no variable of the function."""
    code = frame.decoded.code
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    try:
        made = source if isinstance(source, types.CodeType) else compile(source, "<names>", "exec")
    except (SyntaxError, TypeError, ValueError):
        return True
    names = {token for name in (*made.co_names, *made.co_varnames) for token in name.split(".")}
    nested = any(isinstance(constant, types.CodeType) for constant in made.co_consts)
    return (
        not nested and own.isdisjoint(names) and names.isdisjoint(("locals", "vars", "dir", "eval", "exec"))
    )


def _behind_jumps(decoded: Decoded, index: int) -> int:
    """Where the instructions at `index` get to if they only jump: a loop whose test is compiled at both of its ends
    goes on at one place."""
    seen: set[int] = set()
    while decoded.instructions[index].name in _JUMPS and index not in seen:
        seen.add(index)
        index = decoded.instructions[index].arg
    return index


def _point(frame: Frame, index: int, slots: tuple[SlotKind, ...]) -> Point:
    """The place to go on at, with what is alive there."""
    index = _behind_jumps(frame.decoded, index)
    live = live_at(frame.decoded, index)
    fixed = dict(zip(frame.decoded.code.co_freevars, frame.function.__closure__ or (), strict=False))
    cells = {name for name in (*live.cells, *live.locals) if name in frame.cells}
    held = tuple(sorted(name for name in cells if fixed.get(name) is not frame.cells[name]))
    names = sorted(name for name in live.locals if name in frame.locals and name not in cells)
    first = frame.decoded.code.co_varnames[:1]
    names.sort(key=lambda name: name not in first)
    return Point(index, tuple(names), held, slots)


def _resume(interp: Interpreter, frame: Frame, point: Point) -> Any:
    """The compiled resume function that goes on at this point."""
    cache = interp.resume_cache
    # A function may be given other code. `Resume` holds both, so their ids stay theirs.
    key = (id(frame.function), id(frame.decoded.code), point)
    found = cache.resumes.get(key)
    if found is None:
        found = cache.resumes[key] = compiled_resume(
            interp,
            Resume(frame.function, frame.decoded, point, cache, within=interp.whereabouts.within),
        )
    return found


def _continuation(interp: Interpreter, frame: Frame, plan: ContinuationPlan) -> types.FunctionType:
    made = interp.resume_cache.continuations
    # What is made holds the globals, and beside it stands the code, so their ids stay theirs.
    key = (id(frame.decoded.code), id(frame.globals), plan)
    found, _ = made.get(key, (None, None))
    if found is None:
        code = continuation_code(frame.decoded, plan)
        if logs.enabled("bytecode"):
            where = frame.decoded.location(plan.index)
            logs.emit("bytecode", f"{code.co_name}, break at line {where.line}\n{dis.Bytecode(code).dis()}")
        found = types.FunctionType(code, frame.globals, code.co_name)
        found.__module__ = frame.function.__module__
        made[key] = found, frame.decoded.code
    return found
