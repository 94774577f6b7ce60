"""The order in which constants are computed: each right before it is needed, the largest first.

    before:  a = x * s;  b = y * t;  a.packed = pack(a);  b.packed = pack(b)
    after:   b = y * t;  b.packed = pack(b);  a = x * s;  a.packed = pack(a)          where b is larger

So an intermediate dies before the next one is made, which gets its memory: pages that are in the cache and need not be
asked of the system, and no second copy of all weights at the peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lampwork.backends.native.tasks import ExternTask, Task, task_reads, task_writes
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.nodes import Buffer


def in_order_of_demand(tasks: Sequence[Task], wanted: Iterable[Buffer]) -> list[Task]:
    """`tasks`, which must be in an order that runs, such that what makes `wanted` comes first, the largest of them at
    the start, each with what it needs right before it. The rest follows as it was. Where one draws random numbers or
    writes to its operands, all stay where they are."""
    if any(isinstance(task, ExternTask) and (task.extern.random or task.extern.mutates) for task in tasks):
        return list(tasks)
    maker = {name: number for number, task in enumerate(tasks) for name in task_writes(task)}
    needs = [
        sorted({maker[name] for name in task_reads(task) if name in maker} - {number})
        for number, task in enumerate(tasks)
    ]
    largest = sorted(wanted, key=lambda buffer: -(elements_of(buffer).as_int() or 0))
    roots = [maker[buffer.name] for buffer in largest if buffer.name in maker]
    order: dict[int, None] = {}
    for root in (*roots, *range(len(tasks))):
        waiting = [root]
        while waiting:
            number = waiting[-1]
            missing = [] if number in order else [each for each in needs[number] if each not in order]
            if missing:
                waiting += reversed(missing)
            else:
                order[waiting.pop()] = None
    return [tasks[number] for number in order]
