"""A `Task`: one step of a compiled graph after code generation, before memory is planned. Names, not numbers."""

from __future__ import annotations

from lampwork.codegen.target import DeviceFunction, HostFunction
from lampwork.loops.ir.definitions import reads_of
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Buffer, Extern
from lampwork.records import record


@record
class KernelTask:
    """A generated function and the buffers of its ABI, in order. `writes` names those it stores to.

    sizes: the numbers that it takes, in the order of its ABI. extent: the range of its parallel loop, of which
    one iteration is `work` operations; `chunk` of them are worth a thread.
    """

    name: str
    code: HostFunction | DeviceFunction
    params: tuple[Buffer, ...]
    sizes: tuple[Index, ...]
    writes: frozenset[str]
    extent: Index
    work: Index
    chunk: int
    origin: str = ""

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(b.name for b in self.params if b.name not in self.writes)


@record
class ExternTask:
    """A call through torch's dispatcher."""

    extern: Extern


Task = KernelTask | ExternTask


def task_reads(task: Task) -> frozenset[str]:
    return task.reads if isinstance(task, KernelTask) else frozenset(reads_of(task.extern))


def task_writes(task: Task) -> frozenset[str]:
    return task.writes if isinstance(task, KernelTask) else frozenset(b.name for b in task.extern.outs)
