"""Code for every fusion group: groups in, tasks with functions out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from lampwork.backends.native.tasks import ExternTask, KernelTask, Task
from lampwork.codegen.gpu.grids import grid_key
from lampwork.codegen.target import CompiledTemplate, DeviceFunction, HostFunction, Target
from lampwork.config import current
from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import is_finished_by_last, iteration_work, parallel_extent, statements
from lampwork.loops.ir.nodes import Extern, Kernel, Store, Template
from lampwork.loops.ir.symbols import NO_HINTS
from lampwork.loops.ir.verify import verify_kernel
from lampwork.loops.schedule.schedule import schedule

NO_GRIDS: Mapping[str, str] = MappingProxyType({})
ALL_AT_ONCE = 1 << 62
"""Work of a chunk, of which there is then one."""
Step = list[Kernel] | Template | Extern


@dataclass(slots=True)
class Generated:
    """The tasks of the main and of the constant part, and what is worth a look."""

    tasks: list[Task]
    constant_tasks: list[Task]
    undo_tasks: list[Task]
    """One for each of the undo groups."""
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    templates: list[CompiledTemplate] = field(default_factory=list[CompiledTemplate])
    made: list[tuple[Group, list[Task]]] = field(default_factory=list[tuple[Group, list[Task]]])
    """Every group with its tasks."""


def generate(
    groups: Sequence[Group],
    constant_groups: Sequence[Group],
    target: Target,
    hints: Mapping[str, int] = NO_HINTS,
    undo_groups: Sequence[Group] = (),
    waits: bool = True,
    grids: Mapping[str, str] = NO_GRIDS,
) -> Generated:
    """Schedule all groups, compile what is new in as few modules as possible, and say what to call in which order.

    Args:
        hints: likely values of symbols, to choose by.
        undo_groups: what takes writes back, each a kernel of its own.
        grids: of kernels of a card, by what `grid_key` says of them: those that were measured to be better.
        waits: for the code; else it may still be compiled, and errors of LLVM's come up where it is used.

    Raises:
        BackendError: a group has no schedule, or code generation failed.
    """
    everything = (*groups, *constant_groups, *undo_groups)
    definitions = [first for group in everything if isinstance(first := group.definitions[0], Template)]
    steps: list[Step] = []
    scheduled = _scheduled(everything, steps, target, hints, grids)
    functions, templates = target.generate(target).compile(scheduled, definitions, hints, waits)
    kernels = [kernel for step in steps if isinstance(step, list) for kernel in step]
    ready = iter(templates)
    tasks: list[list[Task]] = []
    for step, group in zip(steps, everything, strict=True):
        if isinstance(step, Extern):
            tasks.append([ExternTask(step)])
        elif isinstance(step, list):
            tasks.append([_kernel_task(kernel, functions, target) for kernel in step])
        else:
            tasks.append([_template_task(next(ready), group)])
    first, last = len(groups), len(groups) + len(constant_groups)
    main, constant, undo = (
        [task for each in part for task in each] for part in (tasks[:first], tasks[first:last], tasks[last:])
    )
    made = list(zip(everything, tasks, strict=True))
    return Generated(main, constant, undo, kernels, templates, made)


def _scheduled(
    groups: Sequence[Group],
    steps: list[Step],
    target: Target,
    hints: Mapping[str, int],
    grids: Mapping[str, str],
) -> Iterator[Kernel]:
    """The kernels of all groups, made as they are asked for; `steps` receives what becomes of each group."""
    for number, group in enumerate(groups):
        only = group.definitions[0]
        if isinstance(only, Extern | Template):
            steps.append(only)
            continue
        kernels = schedule(group, f"k{number}", target, hints)
        if grids:
            kernels = [replace(each, variant=grids.get(grid_key(each, hints), "")) for each in kernels]
        steps.append(kernels)
        for kernel in kernels:
            if current().verify:
                verify_kernel(kernel)
            yield kernel


def _template_task(compiled: CompiledTemplate, group: Group) -> KernelTask:
    out = group.outs[0].name
    return KernelTask(
        out,
        compiled.code,
        compiled.params,
        compiled.sizes,
        frozenset(each.name for each in group.outs),
        compiled.extent,
        compiled.work,
        compiled.chunk,
        f"{group.kind} {out}",
    )


def _kernel_task(
    kernel: Kernel, functions: Mapping[str, HostFunction | DeviceFunction], target: Target
) -> KernelTask:
    return KernelTask(
        kernel.name,
        functions[kernel.name],
        kernel.params,
        tuple(map(Index.sym, kernel.sizes)),
        _stores(kernel),
        parallel_extent(kernel),
        iteration_work(kernel),
        ALL_AT_ONCE if is_finished_by_last(kernel) else target.kernel_work,
        kernel.origin,
    )


def _stores(kernel: Kernel) -> frozenset[str]:
    params = {buffer.name for buffer in kernel.params}
    stored = {stmt.buffer.name for stmt in statements(kernel.body) if isinstance(stmt, Store)}
    return frozenset(stored & params)
