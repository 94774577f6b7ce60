"""What csrc/profile.cpp saw, as arrays: spans of one thread each, which lie within each other or apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from lampwork.records import record
from lampwork.runtime.program import Program
from lampwork.runtime.steps import StepFacts

SPAN = np.dtype(
    [
        ("begin", "i8"),
        ("end", "i8"),
        ("self", "i8"),
        ("what", "i4"),
        ("of", "i4"),
        ("index", "i4"),
        ("depth", "i4"),
        ("within", "i4"),
        ("unused", "i4"),
    ]
)
"""As `Seen` in csrc/profile.cpp. Times in nanoseconds of the monotonic clock. `of`: the number of a program, of runs
and calls, else of a name. `index`: of the instruction that a call is. `within`: whether it is part of a call or of a
compilation, whose own time counts all of it."""

What = Literal["run", "call", "operator", "label", "backward", "compile"]
WHAT: tuple[What, ...] = ("run", "call", "operator", "label", "backward", "compile")


@record(eq=False)
class ThreadSpans:
    """What one thread did, in the order in which it ended. `lost`: how many spans there was no room for."""

    number: int
    spans: NDArray[Any]
    names: Sequence[str]
    programs: Sequence[Program]
    steps: Sequence[dict[int, StepFacts]]
    """Of each program, the facts of its calls by the number of the instruction."""
    lost: int

    def name(self, span: Any) -> str:
        what, of, index = WHAT[span["what"]], int(span["of"]), int(span["index"])
        if what == "run":
            return self.programs[of].name or "a program"
        if what == "call":
            return call_name(self.programs[of], index)
        return self.names[of]


def call_name(program: Program, index: int) -> str:
    return cast(Any, program.instructions[index]).name


def read(raw: Sequence[tuple[int, bytes, list[str], list[Program], int]]) -> tuple[ThreadSpans, ...]:
    """What `_C.end_profile` gave. The facts of a program that several threads ran are made once."""
    known: dict[int, dict[int, StepFacts]] = {}
    threads: list[ThreadSpans] = []
    for number, spans, names, programs, lost in raw:
        for program in programs:
            if id(program) not in known:
                known[id(program)] = {step.index: step for step in program.steps()}
        steps = [known[id(program)] for program in programs]
        threads.append(ThreadSpans(number, np.frombuffer(spans, SPAN), names, programs, steps, lost))
    return tuple(sorted(threads, key=lambda thread: thread.number))
