"""Where a buffer lies that is another with some elements replaced (`loops.ir.nodes.Map.onto`): in place, or in a copy.

    before: k0 writes cache_1, onto cache; k1 reads cache_1
    after:  k0 writes to the memory of cache; k1 reads that            if nothing reads cache after k0
    or:     copy = clone(cache); k0 writes to copy; k1 reads copy      otherwise

The memory of an input is written only if what it holds in the end is the input's new content; then nothing is copied,
neither before nor behind. Whatever order fusion and rewrites have left the tasks in, a reader never sees what was
written after it: this looks at the tasks as they will run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lampwork.backends.native.tasks import ExternTask, Task, task_reads, task_writes
from lampwork.loops.ir.index import ZERO
from lampwork.loops.ir.nodes import Buffer, Extern, View
from lampwork.records import record


@record
class Write:
    """The buffer `out` that is `onto` with some elements replaced, and the task that puts those back.

    needs: the buffers that the task reads, `saved`, which another task fills, among them.
    """

    out: str
    onto: Buffer
    saved: str
    needs: frozenset[str]
    undo: Task


@dataclass(slots=True)
class Placed:
    """tasks: with the copies that are needed. memory: a buffer that a write makes -> the buffer whose memory it has.
    outside: the number of a task that writes to an input's memory -> that write. kept: what its undoing needs."""

    tasks: list[Task]
    memory: dict[str, str] = field(default_factory=dict[str, str])
    outside: dict[int, Write] = field(default_factory=dict[int, Write])
    kept: set[str] = field(default_factory=set[str])

    def root(self, name: str) -> str:
        """The buffer whose memory a buffer has: itself, if it is not made by a write."""
        return self.memory.get(name, name)


def place_writes(tasks: Sequence[Task], contents: Mapping[str, str], writes: Sequence[Write]) -> Placed:
    """Decide for each of `writes`, in their order, where its buffer lies.

    Args:
        contents: input or bound buffer -> the buffer of its content after the call.
    """
    maker = {name: at for at, task in enumerate(tasks) for name in task_writes(task)}
    writes = [write for write in writes if write.out in maker]
    read: dict[str, int] = {}
    for at, task in enumerate(tasks):
        for name in task_reads(task):
            read[name] = at
    onto = [write.onto.name for write in writes]
    last = {
        write.out: onto.count(write.onto.name) == 1 and read.get(write.onto.name, -1) < maker[write.out]
        for write in writes
    }
    roots: dict[str, str] = {}
    in_place: dict[str, bool] = {}
    ends: dict[str, str] = {}
    for write in writes:
        root = roots[write.out] = roots.get(write.onto.name, write.onto.name)
        in_place[root] = in_place.get(root, True) and last[write.out]
        ends[root] = write.out
    placed = Placed([])
    copies: dict[int, list[Task]] = {}
    unused: set[str] = set()
    outside: dict[int, Write] = {}
    for write in writes:
        root = roots[write.out]
        if in_place[root] and contents.get(root) == ends[root]:
            placed.memory[write.out] = root
            placed.kept |= write.needs
            outside[maker[write.out]] = write
            continue
        unused.add(write.saved)
        if last[write.out] and write.onto.name in placed.memory:
            placed.memory[write.out] = placed.memory[write.onto.name]
            continue
        copy = Buffer(f"{write.out}_copy", write.onto.dtype, write.onto.shape, write.onto.strides)
        view = View(write.onto, write.onto.shape, write.onto.strides, ZERO)
        extern = Extern((copy,), "aten::clone.default", (view,), origin=write.out, raises=False)
        copies.setdefault(maker[write.out], []).append(ExternTask(extern))
        placed.memory[write.out] = copy.name
    for at, task in enumerate(tasks):
        placed.tasks.extend(copies.get(at, ()))
        if at in outside:
            placed.outside[len(placed.tasks)] = outside[at]
        if not task_writes(task) or not task_writes(task) <= unused:
            placed.tasks.append(task)
    return placed
