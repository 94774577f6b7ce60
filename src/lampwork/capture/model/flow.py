"""Control flow and liveness of decoded code: what a resume function needs to know."""

from __future__ import annotations

from collections.abc import Iterable

from lampwork.capture.model.frame import Decoded
from lampwork.records import record

_NO_FALL_THROUGH = frozenset(
    {
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
    }
)
CELL_OPCODES = frozenset({"LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF"})


def is_jump(name: str) -> bool:
    return "JUMP" in name or name in ("FOR_ITER", "SEND")


def successors(decoded: Decoded, index: int) -> list[int]:
    """Where control may go after an instruction, exceptions included."""
    instruction = decoded.instructions[index]
    found: list[int] = []
    if instruction.name not in _NO_FALL_THROUGH:
        found.append(index + 1)
    if is_jump(instruction.name):
        found.append(instruction.arg)
    handler = decoded.excepts[index]
    if handler is not None:
        found.append(handler.target)
    return found


def reachable(decoded: Decoded, starts: Iterable[int], loop: int | None = None) -> set[int]:
    """All instructions that control may get to from `starts`, those included; `loop` is a FOR_ITER that never ends."""
    seen: set[int] = set()
    work = list(starts)
    while work:
        index = work.pop()
        if index not in seen:
            seen.add(index)
            work.extend(n for n in successors(decoded, index) if index != loop or n == index + 1)
    return seen


def leaves_otherwise(decoded: Decoded, index: int, loop: int) -> bool:
    """Whether code from an instruction inside of a loop on may come to a return before the loop's iterator, which
    FOR_ITER number `loop` reads, is at its end."""
    names = (decoded.instructions[n].name for n in reachable(decoded, [index], loop))
    return any(name in ("RETURN_VALUE", "RETURN_CONST") for name in names)


def local_names(arg: str | tuple[str, str]) -> tuple[str, ...]:
    """The variables that an instruction on local variables names."""
    return (arg,) if isinstance(arg, str) else arg


def _stores(name: str) -> tuple[bool, ...]:
    """For each variable of an instruction on local variables whether it is written, not read."""
    return tuple(part == "STORE" for part in name.split("_") if part in ("LOAD", "STORE", "DELETE"))


@record
class LiveNames:
    """Names that code from some instruction on may read."""

    locals: frozenset[str]
    cells: frozenset[str]


def live_at(decoded: Decoded, start: int) -> LiveNames:
    """What is live before the instruction `start`: locals that are read before they are written on some path, and all
    cells that are used at all. super() without arguments reads the first argument and `__class__`."""
    nodes = sorted(reachable(decoded, [start]), reverse=True)
    before: dict[int, frozenset[str]] = {index: frozenset() for index in nodes}
    cells: set[str] = set()
    free = decoded.code.co_freevars
    changed = True
    while changed:
        changed = False
        for index in nodes:
            instruction = decoded.instructions[index]
            after = frozenset[str]().union(*(before[s] for s in successors(decoded, index)))
            name = instruction.name
            if "_FAST" in name:
                # Some name two variables, to be read or written one after the other.
                accesses = list(zip(local_names(instruction.arg), _stores(name), strict=True))
                for variable, is_store in reversed(accesses):
                    after = after - {variable} if is_store else after | {variable}
                handler = decoded.excepts[index]
                if handler is not None:
                    after |= before[handler.target]
            elif name in CELL_OPCODES:
                cells.add(instruction.arg)
            elif "__class__" in free and (
                (name == "LOAD_GLOBAL" and instruction.arg[0] == "super")
                or (name == "CALL" and instruction.arg[0] == 0)
            ):
                # Without arguments it looks at these two, when it is called.
                after |= {decoded.code.co_varnames[0]}
                cells.add("__class__")
            if after != before[index]:
                before[index] = after
                changed = True
    return LiveNames(before[start], frozenset(cells))
