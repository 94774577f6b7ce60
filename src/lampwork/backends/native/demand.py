"""The order in which constants are computed: each right before it is needed.

    before:  a = x * s;  b = y * t;  a.packed = pack(a);  b.packed = pack(b)
    after:   a = x * s;  a.packed = pack(a);  b = y * t;  b.packed = pack(b)

So an intermediate dies before the next one is made, which gets its memory: pages that are in the cache and need not be
asked of the system, and no second copy of all weights at the peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lampwork.backends.native.tasks import Task, task_reads, task_writes


def in_order_of_demand(tasks: Sequence[Task], wanted: Iterable[str]) -> list[Task]:
    """`tasks`, which must be in an order that runs, such that what makes `wanted` comes first, in the order of
    `wanted`, each with what it needs right before it. The rest follows as it was."""
    maker = {name: number for number, task in enumerate(tasks) for name in task_writes(task)}
    needs = [
        sorted({maker[name] for name in task_reads(task) if name in maker} - {number})
        for number, task in enumerate(tasks)
    ]
    order: dict[int, None] = {}
    for first in (*(maker[name] for name in wanted if name in maker), *range(len(tasks))):
        waiting = [first]
        while waiting:
            number = waiting[-1]
            missing = [] if number in order else [each for each in needs[number] if each not in order]
            if missing:
                waiting += reversed(missing)
            else:
                order[waiting.pop()] = None
    return [tasks[number] for number in order]
