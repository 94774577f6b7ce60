"""Graph breaks: code that runs one instruction in plain Python and goes on in a resume function.

before (the region ends before the call of `print`; on the stack: NULL, print, y; live: a, y)::

    y = a + 1
    print(y)
    return y * a

after, `continuation` (plain Python) and `resume` (captured in its turn)::

    def continuation(resume, a, y, stack_0, stack_1):
        result = stack_0(stack_1)
        return resume(a, y, result)

    def resume(a, y, result):
        <result>             # pushed back on the stack
        POP_TOP
        return y * a
"""

from __future__ import annotations

import dis
import sys
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from bytecode import Bytecode, CompilerFlags, Instr, Label
from bytecode.instr import CellVar, FreeVar, TryBegin, TryEnd

from lampwork import logs
from lampwork.capture import torch_calls
from lampwork.capture.breaks import Break, FrameRefused
from lampwork.capture.flow import in_loop, is_jump, live_at, reachable
from lampwork.capture.frame import Decoded, Frame
from lampwork.capture.recipe import RecipeBuilder
from lampwork.capture.values import NULL, Lazy

if TYPE_CHECKING:
    from lampwork.capture.interpreter import Interpreter

_BRANCHES = frozenset(
    f"POP_JUMP_{direction}IF_{test}"
    for direction in ("", "FORWARD_", "BACKWARD_")
    for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")
)
# How many values an instruction takes from the stack, and gives.
_EFFECTS: dict[str, tuple[int, int]] = {
    "BINARY_OP": (2, 1),
    "COMPARE_OP": (2, 1),
    "CONTAINS_OP": (2, 1),
    "IS_OP": (2, 1),
    "UNARY_NOT": (1, 1),
    "UNARY_NEGATIVE": (1, 1),
    "UNARY_POSITIVE": (1, 1),
    "UNARY_INVERT": (1, 1),
    "BINARY_SUBSCR": (2, 1),
    "STORE_SUBSCR": (3, 0),
    "DELETE_SUBSCR": (2, 0),
    "LOAD_ATTR": (1, 1),
    "LOAD_METHOD": (1, 1),
    "STORE_ATTR": (2, 0),
    "DELETE_ATTR": (1, 0),
    "GET_ITER": (1, 1),
    "IMPORT_NAME": (2, 1),
    "IMPORT_FROM": (1, 2),
    "BEFORE_WITH": (1, 2),
    "LOAD_BUILD_CLASS": (0, 1),
    "STORE_GLOBAL": (1, 0),
    **dict.fromkeys(_BRANCHES, (1, 0)),
}


@dataclass(frozen=True, slots=True)
class StackEffect:
    """The instruction at a break: how many values it takes and gives, and whether it ends in two ways."""

    takes: int
    gives: int
    branches: bool = False


def add_continuation(interp: Interpreter, builder: RecipeBuilder, frame: Frame, stop: Break) -> int:
    """Add the steps that end a region at a graph break; gives the step of the call's result.

    Raises:
        FrameRefused: the frame cannot be rebuilt there.
    """
    decoded, index = frame.decoded, frame.ip
    where = str(decoded.location(index))
    if in_loop(decoded, index):
        raise FrameRefused("LW130", where, stop.location)
    instruction = decoded.instructions[index]
    effect = _effect(instruction.name, instruction.arg)
    if effect is None or frame.handled is not None or _needs_super(decoded, index):
        raise FrameRefused("LW131", where, stop.location)

    operands = frame.stack[len(frame.stack) - effect.takes :] if effect.takes else []
    below = frame.stack[: len(frame.stack) - effect.takes]
    if instruction.name == "LOAD_METHOD":
        results = [NULL, None]
    else:
        results = [None] * effect.gives
    targets = [(index + 1, [*below, *results])]
    if effect.branches:
        targets.append((cast(int, instruction.arg), below))

    names = _live_names(frame, [target for target, _ in targets])
    resumes = [_resume(interp, frame, target, names, stack) for target, stack in targets]
    code = _continuation_code(frame, names, below, operands, effect, len(resumes))
    _log(code)
    continuation = types.FunctionType(code, frame.globals, code.co_name)

    for context in interp.contexts.entered:
        builder.value(context)
    if torch.is_grad_enabled() != interp.contexts.grad_enabled:
        builder.call(torch._C._set_grad_enabled, builder.step("const", torch.is_grad_enabled()))
    _replace_callee(interp, frame, operands, stop)
    values: list[Any] = [frame.locals[n] if n in frame.locals else frame.cells[n] for n in names]
    stack = [value for value in (*below, *operands) if value is not NULL]
    steps = [builder.value(value) for value in (*values, *stack)]
    return builder.call(continuation, *[builder.step("const", resume) for resume in resumes], *steps)


def _log(code: types.CodeType) -> None:
    if logs.enabled("bytecode"):
        logs.emit("bytecode", f"{code.co_name}\n{dis.Bytecode(code).dis()}")


def _effect(name: str, arg: Any) -> StackEffect | None:
    """What an instruction does to the stack; None if a region cannot end before it."""
    if name in _EFFECTS:
        takes, gives = _EFFECTS[name]
        return StackEffect(takes, gives, name in _BRANCHES)
    if name == "CALL":
        return StackEffect(arg[0] + 2, 1)
    if name == "CALL_FUNCTION_EX":
        return StackEffect(3 + (arg & 1), 1)
    if name == "UNPACK_SEQUENCE":
        return StackEffect(1, arg)
    if name == "UNPACK_EX":
        return StackEffect(1, (arg & 0xFF) + 1 + (arg >> 8))
    if name == "FORMAT_VALUE":
        return StackEffect(2 if arg & 4 else 1, 1)
    if name in ("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE"):
        return StackEffect(arg + 1, arg)
    if name == "LOAD_GLOBAL" and not arg[1]:
        return StackEffect(0, 1)
    return None


def _needs_super(decoded: Decoded, index: int) -> bool:
    """Whether code after the break calls super() without arguments, which needs the original frame's cell."""
    if "__class__" not in decoded.code.co_freevars:
        return False
    return any(
        decoded.instructions[i].name == "LOAD_GLOBAL" and decoded.instructions[i].arg[0] == "super"
        for i in reachable(decoded, [index])
    )


def _live_names(frame: Frame, starts: list[int]) -> list[str]:
    """Locals and cells to pass on, in a fixed order."""
    names: set[str] = set()
    for start in starts:
        live = live_at(frame.decoded, start)
        names |= {name for name in live.locals if name in frame.locals or name in frame.cells}
        names |= {name for name in live.cells if name in frame.cells}
    return sorted(names)


def _replace_callee(interp: Interpreter, frame: Frame, operands: list[Any], stop: Break) -> None:
    """A Python function that could not be inlined is called in its own compiled version."""
    compile_function = interp.options.compile_function
    if (
        compile_function is None
        or stop.depth < 2
        or frame.decoded.instructions[frame.ip].name != "CALL"
        or operands[0] is not NULL
    ):
        return
    function = interp.force(operands[1]) if type(operands[1]) is Lazy else operands[1]
    receiver: Any = NULL
    if isinstance(function, types.MethodType):
        function, receiver = function.__func__, function.__self__
    compilable = isinstance(function, torch.nn.Module) or (
        isinstance(function, types.FunctionType) and not torch_calls.is_torch_module(function.__module__)
    )
    entry = interp.outside.entry(function)
    if not compilable or (entry is None and function.__closure__ is not None):
        return
    compiled = compile_function(function)
    interp.outside.known(compiled, getattr(function, "__qualname__", "module"))
    operands[:2] = [NULL, compiled] if receiver is NULL else [compiled, receiver]


# --- code -------------------------------------------------------------------------------------------------------------


def _raw(decoded: Decoded) -> list[list[Instr]]:
    """The instructions of the `bytecode` package that each decoded instruction stands for."""
    instrs = [i for i in Bytecode.from_code(decoded.code) if isinstance(i, Instr)]
    groups: list[list[Instr]] = []
    part: list[Instr] = []
    names = (
        r.opname for r in dis.get_instructions(decoded.code) if r.opname not in ("CACHE", "EXTENDED_ARG")
    )
    for name, instr in zip(names, instrs, strict=True):
        part.append(instr)
        if name not in ("PRECALL", "KW_NAMES"):
            groups.append(part)
            part = []
    return groups


def _resume(interp: Interpreter, frame: Frame, index: int, names: list[str], stack: list[Any]) -> Any:
    """The compiled resume function that goes on at `index` with this stack."""
    layout = tuple(value is NULL for value in stack)
    key = (frame.decoded.code, id(frame.globals), index, tuple(names), layout)
    found = interp.options.resumes.get(key)
    if found is None:
        code = _resume_code(frame.decoded, index, names, layout)
        _log(code)
        function = types.FunctionType(code, frame.globals, code.co_name)
        function.__module__ = frame.function.__module__
        compile_resume = interp.options.compile_resume
        found = compile_resume(function) if compile_resume is not None else function
        interp.options.resumes[key] = found
    return found


def _header(code: types.CodeType, name: str, arguments: list[str]) -> Bytecode:
    """An empty code object with these positional arguments."""
    made = Bytecode()
    made.name = name
    made.qualname = code.co_qualname
    made.filename = code.co_filename
    made.first_lineno = code.co_firstlineno
    made.argnames = list(arguments)
    made.argcount = len(arguments)
    made.flags = CompilerFlags.OPTIMIZED | CompilerFlags.NEWLOCALS
    made.append(Instr("RESUME", 0, lineno=code.co_firstlineno))
    return made


def _resume_code(decoded: Decoded, index: int, names: list[str], layout: tuple[bool, ...]) -> types.CodeType:
    """Code that pushes its stack arguments and goes on at instruction `index`.

    Cells arrive as arguments: what the original does to the content of a cell is done to its `cell_contents`.
    """
    code = decoded.code
    slots = [f"__stack_{i}" for i, is_null in enumerate(layout) if not is_null]
    made = _header(code, f"{code.co_name}_resume_{decoded.instructions[index].line}", [*names, *slots])
    line = decoded.instructions[index].line
    kept = sorted(reachable(decoded, [index]))
    targets = {decoded.instructions[i].arg for i in kept if is_jump(decoded.instructions[i].name)}
    targets |= {handler.target for i in kept if (handler := decoded.excepts[i]) is not None}
    labels = {i: Label() for i in {*targets, index}}
    for i, is_null in enumerate(layout):
        made.append(
            Instr("PUSH_NULL", lineno=line) if is_null else Instr("LOAD_FAST", f"__stack_{i}", lineno=line)
        )
    made.append(Instr("JUMP_FORWARD", labels[index], lineno=line))

    groups = _raw(decoded)
    current: Any = None
    begun: TryBegin | None = None
    for i in kept:
        handler = decoded.excepts[i]
        if handler is not current:
            if begun is not None:
                made.append(TryEnd(begun))
            begun = None
        if i in labels:
            made.append(labels[i])
        if handler is not current:
            current = handler
            if handler is not None:
                begun = TryBegin(labels[handler.target], handler.lasti, handler.depth)
                made.append(begun)
        for instr in groups[i]:
            made.extend(_without_cells(instr, labels, decoded, i))
    if begun is not None:
        made.append(TryEnd(begun))
    return made.to_code(stacksize=code.co_stacksize + len(layout) + 4, compute_exception_stack_depths=False)


def _without_cells(instr: Instr, labels: dict[int, Label], decoded: Decoded, index: int) -> list[Instr]:
    """An instruction on the new labels, with cells as ordinary locals."""
    location = instr.location
    name, arg = instr.name, instr.arg
    if isinstance(arg, Label):
        return [Instr(name, labels[decoded.instructions[index].arg], location=location)]
    if isinstance(arg, (CellVar, FreeVar)):
        load = Instr("LOAD_FAST", arg.name, location=location)
        if name == "LOAD_CLOSURE":
            return [load]
        attribute = {"LOAD_DEREF": "LOAD_ATTR", "STORE_DEREF": "STORE_ATTR", "DELETE_DEREF": "DELETE_ATTR"}
        return [load, Instr(attribute[name], "cell_contents", location=location)]
    return [Instr(name, arg, location=location)]


def _continuation_code(
    frame: Frame, names: list[str], below: list[Any], operands: list[Any], effect: StackEffect, n_resumes: int
) -> types.CodeType:
    """Code that runs the instruction at the break on its operands, then calls a resume function.

    Arguments: the resume functions, the live names, then what is on the stack, NULLs left out.
    """
    decoded, index = frame.decoded, frame.ip
    code, line = decoded.code, decoded.instructions[index].line
    resumes = [f"__resume_{i}" for i in range(n_resumes)]
    lower = [f"__below_{i}" for i, value in enumerate(below) if value is not NULL]
    upper = [None if value is NULL else f"__operand_{i}" for i, value in enumerate(operands)]
    made = _header(
        code, f"{code.co_name}_break_{line}", [*resumes, *names, *lower, *(name for name in upper if name)]
    )

    def call(resume: str, results: list[str]) -> None:
        arguments = [*names, *lower, *results]
        made.append(Instr("PUSH_NULL", lineno=line))
        made.extend(Instr("LOAD_FAST", name, lineno=line) for name in (resume, *arguments))
        if sys.version_info < (3, 12):
            made.append(Instr("PRECALL", len(arguments), lineno=line))
        made.append(Instr("CALL", len(arguments), lineno=line))
        made.append(Instr("RETURN_VALUE", lineno=line))

    for name in upper:
        made.append(
            Instr("PUSH_NULL", lineno=line) if name is None else Instr("LOAD_FAST", name, lineno=line)
        )
    label = Label()
    for instr in _raw(decoded)[index]:
        if isinstance(instr.arg, Label):
            made.append(Instr(instr.name.replace("BACKWARD", "FORWARD"), label, lineno=line))
        elif instr.name == "LOAD_METHOD":
            made.append(Instr("LOAD_ATTR", cast(str, instr.arg), lineno=line))
        else:
            made.append(Instr(instr.name, instr.arg, lineno=line))
    results = [f"__result_{i}" for i in range(effect.gives)]
    made.extend(Instr("STORE_FAST", name, lineno=line) for name in reversed(results))
    call(resumes[0], results)
    if effect.branches:
        made.append(label)
        call(resumes[1], [])
    return made.to_code()
