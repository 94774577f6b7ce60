"""Bytecode around graph breaks: continuations, which run as plain Python, and the plain form of resume functions.

Both bear the name and the lines of the function they are made of, so that tracebacks and warnings read as in eager.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from lampwork.capture.model.flow import CELL_OPCODES, is_jump, local_names, reachable
from lampwork.capture.model.frame import Decoded
from lampwork.installed import needed
from lampwork.records import record

if TYPE_CHECKING:
    import bytecode
    import bytecode.instr
else:
    # Where models are only loaded it need not be installed.
    bytecode = needed("bytecode", "to go on behind a graph break")

# Whether the NULL for a missing receiver lies above the function to be called, or below.
NULL_ABOVE = sys.version_info >= (3, 13)
# Whether CALL_FUNCTION_EX finds NULL where it is given no mapping.
ALWAYS_MAPPING = sys.version_info >= (3, 14)

SlotKind = Literal["value", "null", "previous", "lasti"]
"""What lies on the stack: a value; NULL; the exception that was handled before the one handled from here up; the
offset of an instruction that raised, which nothing looks at."""


@record
class Point:
    """A place to go on at: before instruction `index`, with these locals and cells alive and this stack.

    A resume function takes, by position: the locals in order (the original's first argument first, where super() looks
    for it), the cells in order, then an argument for
    each "value" slot and, for each "previous" slot, the exception that is being handled from there up.
    """

    index: int
    locals: tuple[str, ...]
    cells: tuple[str, ...]
    slots: tuple[SlotKind, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments of the resume function."""
        stack = (f"__stack_{i}" for i, kind in enumerate(self.slots) if kind in ("value", "previous"))
        return (*self.locals, *self.cells, *stack)


def _header(code: types.CodeType, arguments: Sequence[str]) -> bytecode.Bytecode:
    """An empty code object with these positional arguments."""
    made = bytecode.Bytecode()
    made.name = code.co_name
    made.qualname = code.co_qualname
    made.filename = code.co_filename
    made.first_lineno = code.co_firstlineno
    made.argnames = list(arguments)
    made.argcount = len(arguments)
    made.flags = bytecode.CompilerFlags.OPTIMIZED | bytecode.CompilerFlags.NEWLOCALS
    return made


_UNKNOWN = frozenset({dis.opmap[name] for name in ("BUILD_INTERPOLATION",) if name in dis.opmap})


def is_editable(code: types.CodeType) -> bool:
    """Whether the `bytecode` package can take code apart and put it together: not with template strings in it."""
    return _UNKNOWN.isdisjoint(code.co_code[::2])


def raw_instructions(decoded: Decoded) -> list[list[bytecode.Instr]]:
    """The instructions of the `bytecode` package that each decoded instruction stands for."""
    instrs = [i for i in bytecode.Bytecode.from_code(decoded.code) if isinstance(i, bytecode.Instr)]
    groups: list[list[bytecode.Instr]] = []
    part: list[bytecode.Instr] = []
    names = (
        r.opname for r in dis.get_instructions(decoded.code) if r.opname not in ("CACHE", "EXTENDED_ARG")
    )
    for name, instr in zip(names, instrs, strict=True):
        part.extend(_singles(instr))
        if name not in ("PRECALL", "KW_NAMES"):
            groups.append(part)
            part = []
    return groups


def _singles(instr: bytecode.Instr) -> list[bytecode.Instr]:
    """An instruction, or the two that it is short for: how many variables such a pair can name is limited."""
    if "_FAST_" not in instr.name or not isinstance(instr.arg, tuple):
        return [instr]
    kinds = (part for part in instr.name.split("_") if part in ("LOAD", "STORE"))
    pairs = zip(kinds, cast(tuple[str, str], instr.arg), strict=True)
    return [bytecode.Instr(f"{kind}_FAST", arg, location=instr.location) for kind, arg in pairs]


# --- resume functions -------------------------------------------------------------------------------------------------


def resume_code(decoded: Decoded, point: Point) -> types.CodeType:
    """Code that puts its arguments back on the stack and goes on at the point, as the original does.

    Cells, those of the point and those of the original's closure, are its free variables, in the order of
    `free_names`; the arguments of the point's cells are left out. `slot_cells` are arguments like any other.
    """
    code, index = decoded.code, point.index
    own, free = slot_cells(decoded, point), free_names(decoded, point)
    made = _header(code, [name for name in point.arguments if name not in free])
    made.freevars = free
    made.cellvars = sorted(own)
    line = decoded.instructions[index].line
    if made.freevars:
        made.append(bytecode.Instr("COPY_FREE_VARS", len(made.freevars), lineno=line))
    made.append(bytecode.Instr("RESUME", 0, lineno=line))
    for i, kind in enumerate(point.slots):
        made.extend(_restored(kind, f"__stack_{i}", line))

    kept = sorted(reachable(decoded, [index]))
    targets = {decoded.instructions[i].arg for i in kept if is_jump(decoded.instructions[i].name)}
    targets |= {handler.target for i in kept if (handler := decoded.excepts[i]) is not None}
    labels = {i: bytecode.Label() for i in {*targets, index}}
    made.append(bytecode.Instr("JUMP_FORWARD", labels[index], lineno=line))
    groups = raw_instructions(decoded)
    current: Any = None
    begun: bytecode.instr.TryBegin | None = None
    for i in kept:
        handler = decoded.excepts[i]
        if handler is not current and begun is not None:
            made.append(bytecode.instr.TryEnd(begun))
            begun = None
        if i in labels:
            made.append(labels[i])
        if handler is not current:
            current = handler
            if handler is not None:
                begun = bytecode.instr.TryBegin(labels[handler.target], handler.lasti, handler.depth)
                made.append(begun)
                # CPython 3.13 looks for the handler of what a call raises by the place before the call.
                made.append(bytecode.Instr("NOP", location=groups[i][0].location))
        for instr in groups[i]:
            made.append(_moved(instr, labels, decoded, i, own))
    if begun is not None:
        made.append(bytecode.instr.TryEnd(begun))
    stack_size = code.co_stacksize + len(point.slots) + 4
    return made.to_code(stacksize=stack_size, compute_exception_stack_depths=False)


def slot_cells(decoded: Decoded, point: Point) -> frozenset[str]:
    """Cells that code from the point on finds in the slot of a local variable.

    Inlined comprehensions save, make and restore them there, and from 3.13 on closures are built of them.
    """
    reached = (decoded.instructions[i] for i in reachable(decoded, [point.index]))
    names = {
        name for i in reached if i.name == "MAKE_CELL" or "_FAST" in i.name for name in local_names(i.arg)
    }
    return frozenset(names & set(decoded.code.co_cellvars))


def free_names(decoded: Decoded, point: Point) -> list[str]:
    """The free variables of a resume function: the original's, then those of its own cells that are alive."""
    free, own = decoded.code.co_freevars, slot_cells(decoded, point)
    return [*free, *(name for name in point.cells if name not in free and name not in own)]


def _restored(kind: SlotKind, argument: str, line: int) -> list[bytecode.Instr]:
    """Instructions that put one slot back; nothing but the stack refers to it then."""
    if kind == "null":
        return [bytecode.Instr("PUSH_NULL", lineno=line)]
    if kind == "lasti":
        return [bytecode.Instr("LOAD_CONST", 0, lineno=line)]
    load = [
        bytecode.Instr("LOAD_FAST", argument, lineno=line),
        bytecode.Instr("DELETE_FAST", argument, lineno=line),
    ]
    return load if kind == "value" else [*load, *_handling(line)]


def _handling(line: int) -> list[bytecode.Instr]:
    """From here the exception on top of the stack is being handled; the one that was before takes its place."""
    return [bytecode.Instr("PUSH_EXC_INFO", lineno=line), bytecode.Instr("POP_TOP", lineno=line)]


def _moved(
    instr: bytecode.Instr,
    labels: dict[int, bytecode.Label],
    decoded: Decoded,
    index: int,
    own: frozenset[str],
) -> bytecode.Instr:
    """An instruction on the new labels, with the original's cells but `own` as free variables."""
    arg = instr.arg
    if isinstance(arg, bytecode.Label):
        arg = labels[decoded.instructions[index].arg]
    elif isinstance(arg, bytecode.instr.CellVar) or (isinstance(arg, str) and instr.name in CELL_OPCODES):
        # From 3.14 on LOAD_DEREF takes an argument's cell under its bare name.
        name = arg if isinstance(arg, str) else arg.name
        arg = arg if name in own else bytecode.instr.FreeVar(name)
    return bytecode.Instr(instr.name, arg, location=instr.location)


# --- continuations ----------------------------------------------------------------------------------------------------


@record
class Action:
    """The instruction at a break: how many values it takes from the stack and gives, and how else it may end.

    `jump`: None, or what it does with its operand if it jumps: "pops" or "keeps". `gives_null`: it gives NULL as well,
    for the receiver of the function that is its result.
    """

    takes: int
    gives: int
    jump: Literal["pops", "keeps"] | None = None
    gives_null: bool = False
    falls_through: bool = True


@record
class ContinuationPlan:
    """All that the code of a continuation depends on.

    `points`: where to go on, in order: after the instruction (if it can end so), where it jumps to (if it may), its
    exception handler (if it has one). `below`, `operands`: the kinds of the stack's slots. `called`: instead of the
    instruction itself, the first operand is called with the others.
    """

    index: int
    action: Action
    points: tuple[Point, ...]
    below: tuple[SlotKind, ...]
    operands: tuple[SlotKind, ...]
    handling: bool
    catches: bool
    called: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Locals and cells that some point needs, cells last."""
        found = dict.fromkeys(name for point in self.points for name in point.locals)
        cells = dict.fromkeys(name for point in self.points for name in point.cells)
        return (*found, *(name for name in cells if name not in found))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments: resume functions, names, the stack below, the operands, the exception being handled."""
        return (
            *(f"__resume_{i}" for i in range(len(self.points))),
            *self.names,
            *(f"__below_{i}" for i, kind in enumerate(self.below) if kind in ("value", "previous")),
            *(f"__operand_{i}" for i, kind in enumerate(self.operands) if kind == "value"),
            *(("__handled",) if self.handling else ()),
        )


def continuation_code(decoded: Decoded, plan: ContinuationPlan) -> types.CodeType:
    """Code that runs the instruction at a break on its operands and returns what to call next: a tuple of a resume
    function and its arguments.

    Arguments: see `ContinuationPlan.arguments`.
    """
    line = decoded.instructions[plan.index].line
    made = _header(decoded.code, plan.arguments)
    emit = _Emitter(made, line)
    emit("RESUME", 0)
    if plan.handling:
        emit("LOAD_FAST", "__handled")
        made.extend(_handling(line))
    begun = None
    caught = bytecode.Label()
    if plan.handling or plan.catches:
        begun = bytecode.instr.TryBegin(caught, False, 1 if plan.handling else 0)
        made.append(begun)
    jumped = bytecode.Label()
    _instruction(emit, decoded, plan, jumped)
    if begun is not None:
        made.append(bytecode.instr.TryEnd(begun))

    points = list(enumerate(plan.points))
    if plan.action.falls_through:
        number, point = points.pop(0)
        results = [f"__result_{i}" for i in range(plan.action.gives)]
        emit.leave(plan, number, point, results)
    if plan.action.jump is not None:
        number, point = points.pop(0)
        made.append(jumped)
        emit.leave(plan, number, point, ["__operand_0"] if plan.action.jump == "keeps" else [])
    if begun is not None:
        made.append(caught)
        if plan.handling:
            emit("SWAP", 2)
            emit("POP_EXCEPT")
        if plan.catches:
            number, point = points.pop(0)
            # The exception stays off the locals: it refers to this frame by its traceback.
            emit.arguments(number, point, without=1)
            emit("SWAP", 2)
            emit("BUILD_TUPLE", 1)
            emit("BINARY_OP", 0)
            emit("RETURN_VALUE")
        else:
            emit("RERAISE", 0)
    depth = len(plan.arguments) + 8
    return made.to_code(stacksize=depth, compute_exception_stack_depths=False)


class _Emitter:
    """Appends instructions on one line."""

    def __init__(self, made: bytecode.Bytecode, line: int) -> None:
        self.made = made
        self.line = line

    def __call__(self, name: str, *arg: Any) -> None:
        self.made.append(bytecode.Instr(name, *arg, lineno=self.line))

    def function(self, load: str, arg: Any) -> None:
        """Push a function that is going to be called, and NULL for its receiver."""
        if NULL_ABOVE:
            self(load, arg)
            self("PUSH_NULL")
        else:
            self("PUSH_NULL")
            self(load, arg)

    def call(self, count: int) -> None:
        if sys.version_info < (3, 12):
            self("PRECALL", count)
        self("CALL", count)

    def arguments(self, number: int, point: Point, results: Sequence[str] = (), without: int = 0) -> None:
        """Build the tuple of a resume function and its arguments, the last `without` of them left out."""
        names = [f"__resume_{number}", *point.locals, *point.cells]
        slots = [i for i, kind in enumerate(point.slots) if kind in ("value", "previous")]
        below = slots[: len(slots) - len(results) - without]
        names += [f"__below_{i}" for i in below]
        names += results
        for name in names:
            self("LOAD_FAST", name)
        self("BUILD_TUPLE", len(names))

    def leave(self, plan: ContinuationPlan, number: int, point: Point, results: list[str]) -> None:
        """Return to the driver, on to a resume function."""
        if plan.handling:
            self("POP_EXCEPT")
        self.arguments(number, point, results)
        self("RETURN_VALUE")


def _instruction(emit: _Emitter, decoded: Decoded, plan: ContinuationPlan, jumped: bytecode.Label) -> None:
    """The instruction itself, from its operands to its results, or on to `jumped`."""
    name = decoded.instructions[plan.index].name
    if plan.called:
        emit.function("LOAD_FAST", "__operand_0")
        for i in range(1, len(plan.operands)):
            emit("LOAD_FAST", f"__operand_{i}")
        emit.call(len(plan.operands) - 1)
        emit("STORE_FAST", "__result_0")
        return
    if name == "WITH_EXCEPT_START":
        # Below it: exit (from 3.14 on with NULL over it), offset, previous exception, exception; only the last has to
        # be on the stack here.
        top = len(plan.below) - 1
        emit.function("LOAD_FAST", f"__below_{top - 3 - (sys.version_info >= (3, 14))}")
        emit("LOAD_FAST", f"__below_{top}")
        emit("LOAD_ATTR", _attribute("__class__"))
        emit("LOAD_FAST", f"__below_{top}")
        emit("LOAD_FAST", f"__below_{top}")
        emit("LOAD_ATTR", _attribute("__traceback__"))
        emit.call(3)
        emit("STORE_FAST", "__result_0")
        return
    if name == "FOR_ITER":
        # next(iterator, end) asks the iterator as the loop does; both come as constants.
        emit.function("LOAD_CONST", next)
        emit("LOAD_FAST", "__operand_0")
        emit("LOAD_CONST", END)
        emit.call(2)
        emit("STORE_FAST", "__result_1")
        emit("LOAD_FAST", "__operand_0")
        emit("STORE_FAST", "__result_0")
        emit("LOAD_FAST", "__result_1")
        emit("LOAD_CONST", END)
        emit("IS_OP", 0)
        emit("POP_JUMP_FORWARD_IF_TRUE" if sys.version_info < (3, 12) else "POP_JUMP_IF_TRUE", jumped)
        return
    for i, kind in enumerate(plan.operands):
        if kind == "null":
            emit("PUSH_NULL")
        else:
            emit("LOAD_FAST", f"__operand_{i}")
    for instr in raw_instructions(decoded)[plan.index]:
        if sys.version_info >= (3, 13) and instr.name in _OF_BOOLS:
            emit("TO_BOOL")
        if isinstance(instr.arg, bytecode.Label):
            kept = instr.name.replace("BACKWARD", "FORWARD").replace("JUMP_IF_TRUE_OR_POP", _JUMP_IF_TRUE)
            emit(kept.replace("JUMP_IF_FALSE_OR_POP", _JUMP_IF_FALSE), jumped)
        elif instr.name == "LOAD_METHOD":
            emit("LOAD_ATTR", cast(str, instr.arg))
        elif instr.name == "LOAD_SUPER_ATTR":
            # The operands are on the stack; super() without them would look into this frame.
            emit(instr.name, (False, True, cast(tuple[Any, ...], instr.arg)[2]))
        elif plan.action.gives_null:
            emit(instr.name, (False, *cast(tuple[Any, ...], instr.arg)[1:]))
        else:
            emit(instr.name, instr.arg)
    for i in range(plan.action.gives - 1, -1, -1):
        emit("STORE_FAST", f"__result_{i}")


# From 3.13 on they take nothing but a bool, and a TO_BOOL comes before them.
_OF_BOOLS = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT")


def _attribute(name: str) -> Any:
    """The argument of LOAD_ATTR for an attribute that is not a method to be called."""
    return name if sys.version_info < (3, 12) else (False, name)


class _End:
    """What an iterator is asked to give at its end."""

    def __repr__(self) -> str:
        return "<end>"


END = _End()
_JUMP_IF_TRUE, _JUMP_IF_FALSE = (
    ("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE")
    if sys.version_info < (3, 12)
    else ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE")
)
