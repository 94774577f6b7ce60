"""Programs of training steps take memory from a heap that they share, and give it back while they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lampwork.graph.devices import CPU
from lampwork.records import record
from lampwork.runtime.arena import place
from lampwork.runtime.program import Instruction, Program, Release, Take, Value, used_by

HEAP_BYTES = 1 << 16
"""Values from this size on are worth a call of the heap's; smaller ones stay in the arena."""


def in_heap(program: Program, lives: Lives | None = None) -> Program:
    """The program with memory for large values from the first instruction that uses them to the last, and with inputs
    that are released after their last one.

    before: %1: arena; %2: fresh; kernel a(%0, %1); kernel b(%1, %2); return %2         %0 is an input
    after:  %1: heap; %2: fresh; take %1; kernel a(%0, %1); release %0; take %2; kernel b(%1, %2); release %1; return %2

    lives: of the program, or of one that differs from it in sizes alone.
    """
    values = list(program.values)
    lives = lives or lives_in(program)
    nbytes = {n: values[n].nbytes for n in lives.owners}
    large = {n for n, size in nbytes.items() if size >= HEAP_BYTES}
    taken = {n for n in large if n in lives.first and values[n].kind != "input" and values[n].device == CPU}
    released = large - lives.lasting
    small = {n for n in lives.owners if _is_in_arena(values[n])} - taken
    instructions: list[Instruction] = []
    memory: list[tuple[bool, int]] = []
    number_of: dict[int, int] = {}
    for at, instruction in enumerate(program.instructions):
        begins, ends = lives.begins.get(at, ()), lives.ends.get(at, ())
        if first := tuple(n for n in begins if n in taken):
            instructions.append(Take(first))
        number_of[at] = len(instructions)
        instructions.append(instruction)
        if last := tuple(n for n in ends if n in released):
            instructions.append(Release(last))
        memory += [(True, n) for n in begins if n in small]
        memory += [(False, n) for n in ends if n in small and n not in lives.lasting]
    offsets, arena_bytes = place(memory, {n: nbytes[n] for is_taken, n in memory if is_taken})
    for number in lives.owners:
        if _is_in_arena(values[number]):
            in_arena = number not in taken
            values[number] = values[number].at(
                "arena" if in_arena else "heap", offsets.get(number, 0) if in_arena else 0
            )
    return replace(
        program,
        values=tuple(values),
        instructions=tuple(instructions),
        arena_bytes=arena_bytes,
        undo=tuple((number_of[at], kernel) for at, kernel in program.undo),
        layout=None,
    )


def _is_in_arena(value: Value) -> bool:
    """Whether a value lies in the CPU's arena; that of an accelerator stays as it is."""
    return value.kind == "arena" and value.device == CPU


@record
class Lives:
    """`owners`: the values of an arena, fresh ones and inputs. `first`: value that owns memory → the first instruction
    that uses it. `begins`, `ends`: the values whose first and last instruction each is. `lasting`: those that have to
    outlive the last one."""

    owners: tuple[int, ...]
    first: Mapping[int, int]
    begins: Mapping[int, Sequence[int]]
    ends: Mapping[int, Sequence[int]]
    lasting: frozenset[int]


def lives_in(program: Program) -> Lives:
    """When each value of a program is used."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, instruction in enumerate(program.instructions):
        for number in used_by(instruction):
            owner = _owner(program.values, number)
            first.setdefault(owner, at)
            last[owner] = at
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, at in first.items():
        begins.setdefault(at, []).append(number)
        ends.setdefault(last[number], []).append(number)
    undone = (number for _, kernel in program.undo for number in kernel.buffers)
    lasting = frozenset(_owner(program.values, number) for number in (*program.outputs, *undone))
    owners = tuple(n for n, value in enumerate(program.values) if value.kind in ("arena", "fresh", "input"))
    return Lives(owners, first, begins, ends, lasting)


def _owner(values: Sequence[Value], number: int) -> int:
    """The value whose memory this one lies in."""
    while values[number].kind == "view":
        number = values[number].base
    return number
