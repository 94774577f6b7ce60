"""What a suspended generator does when nothing refers to it any more: GeneratorExit is raised where it stands."""

from __future__ import annotations

from typing import Any

from lampwork.capture.model.frame import Decoded, Frame

# What handlers begin and end with, where they do not catch what was raised.
_PASSING = frozenset(
    {
        "PUSH_EXC_INFO",
        "COPY",
        "POP_EXCEPT",
        "NOP",
        "POP_TOP",
        "NOT_TAKEN",
        "SWAP",
        "LOAD_CONST",
        "STORE_FAST",
        "DELETE_FAST",
    }
)
_OWN = frozenset({"CALL_INTRINSIC_1", "CLEANUP_THROW"})  # of CPython 3.12 and later, in every generator


def is_seen(frame: Frame, index: int) -> bool:
    """Whether handlers of a generator do anything if it is dropped at an instruction: clauses that do not catch
    GeneratorExit do nothing."""
    decoded = frame.decoded
    seen: set[int] = set()
    handler = decoded.excepts[index]
    while handler is not None:
        index = handler.target
        if index in seen:
            return True
        seen.add(index)
        end = _passed(frame, decoded, index)
        if end is None:
            return True
        handler = decoded.excepts[end]
    return False


def _passed(frame: Frame, decoded: Decoded, index: int) -> int | None:
    """The instruction of a handler that raises GeneratorExit again; None if it may do something else."""
    instructions = decoded.instructions
    classes: list[Any] = []
    while True:
        name, arg = instructions[index].name, instructions[index].arg
        if name in ("RERAISE", *_OWN):
            return index
        if name == "LOAD_GLOBAL":
            key = arg[0]
            classes.append(frame.globals.get(key, frame.builtins.get(key)))
        elif name == "BUILD_TUPLE":
            classes = [tuple(classes[-arg:])] if arg <= len(classes) else [None]
        elif name == "CHECK_EXC_MATCH":
            if not classes or _catches(classes.pop()):
                return None
            branch = instructions[index + 1]
            if "IF_FALSE" not in branch.name:
                return None
            index = branch.arg
            continue
        elif name not in _PASSING:
            return None
        index += 1


def _catches(kinds: Any) -> bool:
    """Whether GeneratorExit is caught, as far as can be told."""
    every = kinds if isinstance(kinds, tuple) else (kinds,)
    return not all(isinstance(kind, type) and not issubclass(GeneratorExit, kind) for kind in every)
