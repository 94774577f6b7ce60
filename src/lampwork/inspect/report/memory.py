"""The memory of a compiled region as data: where each value lies, and from which step to which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lampwork.backends.native.heap_values import in_heap
from lampwork.backends.observer import Inside
from lampwork.records import record
from lampwork.runtime.program import CallAten, CallKernel, Program, used_by

WHEN = "before the first call, and again after one of these was written to"


@record(eq=False)
class Steps:
    """The instructions of a program that do work, in order, and the program: of a training step it takes its memory
    from a heap."""

    program: Program
    calls: tuple[CallKernel | CallAten, ...]

    @staticmethod
    def of(inside: Inside, trained: bool) -> Steps:
        program = in_heap(inside.program) if trained else inside.program
        calls = (each for each in program.instructions if isinstance(each, CallKernel | CallAten))
        return Steps(program, tuple(calls))


def memory_data(steps: Steps, inside: Inside) -> dict[str, Any]:
    """The values that own memory, but inputs and weights, with the steps at which they are first and last used."""
    program = steps.program
    names = names_of(inside)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, call in enumerate(steps.calls):
        outs = call.outs if isinstance(call, CallAten) else ()
        for number in (*used_by(call), *outs):
            owner = _owner(program, number)
            first.setdefault(owner, at)
            last[owner] = at
    end = max(len(steps.calls) - 1, 0)
    leaving = {_owner(program, number) for number in program.outputs}
    values: list[dict[str, Any]] = []
    for number, value in enumerate(program.values):
        if value.kind in ("input", "bound", "view") or (value.kind != "constant" and number not in first):
            continue
        lasting = value.kind == "constant"
        values.append(
            {
                "name": names.get(number, f"%{number}"),
                "kind": value.kind,
                **({"size": value.nbytes} if value.dtype is not None else {}),
                **({"offset": value.offset} if value.kind == "arena" else {}),
                "first": 0 if lasting else first[number],
                "last": end if lasting or number in leaving else last[number],
                **({"device": str(value.device)} if value.device.type != "cpu" else {}),
            }
        )
    return {
        "arena": program.arena_bytes,
        **({"device_arena": program.device_arena_bytes} if program.device_arena_bytes else {}),
        "values": values,
    }


def names_of(inside: Inside) -> dict[int, str]:
    """Values by number, and the buffer that each is."""
    names: dict[int, str] = {}
    for name, number in inside.names.items():
        names.setdefault(number, name)
    return names


def _owner(program: Program, number: int) -> int:
    """The value whose memory this one lies in."""
    while program.values[number].kind == "view":
        number = program.values[number].base
    return number


def constants_data(inside: Inside, known: Mapping[str, str], refreshed: int | None) -> list[dict[str, Any]]:
    """What is computed once for a set of weights, and of which of them. `known`: the names that the report gives to
    nodes of what was compiled. `refreshed`: how often all of it was computed again."""
    program = inside.program
    if program.constants is None:
        return []
    names = names_of(inside)
    bound = [
        known[node.name] for node in inside.graph.nodes if node.op == "placeholder" and node.meta.get("bound")
    ]
    sources = _sources(program.constants)
    found: list[dict[str, Any]] = []
    for number, value in enumerate(program.values):
        if value.kind != "constant":
            continue
        made = sources[program.constants.outputs[value.position]]
        found.append(
            {
                "name": names.get(number, f"%{number}"),
                "from": [bound[place] for place in sorted(made)],
                **({"bytes": value.nbytes} if value.dtype is not None else {}),
                "when": WHEN,
                **({} if refreshed is None else {"refreshed": refreshed}),
            }
        )
    return found


def _sources(program: Program) -> Mapping[int, frozenset[int]]:
    """Value of a constant program -> the positions of the inputs that it is made of."""
    found: dict[int, frozenset[int]] = {
        number: frozenset((value.position,))
        for number, value in enumerate(program.values)
        if value.kind == "input"
    }

    def of(number: int) -> frozenset[int]:
        return found.get(_owner(program, number), frozenset[int]())

    for instruction in program.instructions:
        if not isinstance(instruction, CallKernel | CallAten):
            continue
        used = tuple(used_by(instruction))
        together = frozenset[int]().union(*map(of, used))
        outs = instruction.outs if isinstance(instruction, CallAten) else used
        owners = [_owner(program, number) for number in outs]
        # A kernel writes what nothing has written before; else it adds to something, in place.
        made = [owner for owner in owners if owner not in found] or [
            owner for owner in owners if program.values[owner].kind != "input"
        ]
        found.update((owner, together) for owner in made)
    return {number: of(number) for number in range(len(program.values))}
