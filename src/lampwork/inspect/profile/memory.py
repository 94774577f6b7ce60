"""How much memory a program holds at each of its steps, read off its plan."""

from __future__ import annotations

from lampwork.records import record
from lampwork.runtime.program import CallAten, CallKernel, Program, used_by


@record
class Held:
    """Bytes that are in use during a call. arena: of the block that each running call has for values that come and go.
    fresh: of results, and of what ATen made. heap: of values of a training step, which take their own."""

    index: int
    arena: int
    fresh: int
    heap: int

    @property
    def total(self) -> int:
        return self.arena + self.fresh + self.heap


_KINDS = {"arena": "arena", "fresh": "fresh", "aten": "fresh", "heap": "heap"}


def memory_of(program: Program) -> tuple[Held, ...]:
    """What each call of a program holds, in order: values from the first call that uses them to the last."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, instruction in enumerate(program.instructions):
        outs = instruction.outs if isinstance(instruction, CallAten) else ()
        for number in (*used_by(instruction), *(out for out in outs if out >= 0)):
            owner = _owner(program, number)
            first.setdefault(owner, at)
            last[owner] = at
    end = len(program.instructions)
    last.update((_owner(program, number), end) for number in program.outputs)
    changes: list[dict[str, int]] = [dict.fromkeys(("arena", "fresh", "heap"), 0) for _ in range(end + 2)]
    for owner, at in first.items():
        value = program.values[owner]
        if (kind := _KINDS.get(value.kind)) is not None:
            changes[at][kind] += value.nbytes
            changes[last[owner] + 1][kind] -= value.nbytes
    held: dict[str, int] = dict.fromkeys(("arena", "fresh", "heap"), 0)
    found: list[Held] = []
    for at, instruction in enumerate(program.instructions):
        held = {kind: amount + changes[at][kind] for kind, amount in held.items()}
        if isinstance(instruction, CallKernel | CallAten):
            found.append(Held(at, held["arena"], held["fresh"], held["heap"]))
    return tuple(found)


def _owner(program: Program, number: int) -> int:
    """The value whose memory this one lies in."""
    while program.values[number].kind == "view":
        number = program.values[number].base
    return number
