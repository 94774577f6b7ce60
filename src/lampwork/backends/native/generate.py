"""Code for every fusion group: groups in, tasks with functions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lampwork.backends.native.tasks import ExternTask, KernelTask, Task
from lampwork.codegen.target import CompiledTemplate, MachineFunction, Target
from lampwork.config import current
from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import iteration_work, parallel_extent, statements
from lampwork.loops.ir.nodes import Extern, Kernel, Store, Template
from lampwork.loops.ir.symbols import NO_HINTS
from lampwork.loops.ir.verify import verify_kernel
from lampwork.loops.schedule.schedule import schedule

Step = list[Kernel] | CompiledTemplate | Extern


@dataclass(slots=True)
class Generated:
    """The tasks of the main and of the constant part, and what is worth a look."""

    tasks: list[Task]
    constant_tasks: list[Task]
    undo_tasks: list[Task]
    """One for each of the undo groups."""
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    templates: list[CompiledTemplate] = field(default_factory=list[CompiledTemplate])


def generate(
    groups: Sequence[Group],
    constant_groups: Sequence[Group],
    target: Target,
    hints: Mapping[str, int] = NO_HINTS,
    undo_groups: Sequence[Group] = (),
) -> Generated:
    """Schedule all groups, compile what is new in as few modules as possible, and say what to call in which order.

    Args:
        hints: likely values of symbols, to choose by.
        undo_groups: what takes writes back, each a kernel of its own.

    Raises:
        BackendError: a group has no schedule, or code generation failed.
    """
    every = (*groups, *constant_groups, *undo_groups)
    steps: list[Step] = []
    kernels: list[Kernel] = []
    templates: list[CompiledTemplate] = []
    for number, group in enumerate(every):
        step = _step(group, f"k{number}", target, hints)
        steps.append(step)
        if isinstance(step, list):
            kernels.extend(step)
        elif isinstance(step, CompiledTemplate):
            templates.append(step)
    if current().verify:
        for kernel in kernels:
            verify_kernel(kernel)
    compiled = target.generate(target).compile_kernels(kernels)
    tasks = [_tasks(step, group, compiled, target) for step, group in zip(steps, every, strict=True)]
    first, last = len(groups), len(groups) + len(constant_groups)
    main, constant, undo = (
        [task for each in part for task in each] for part in (tasks[:first], tasks[first:last], tasks[last:])
    )
    return Generated(main, constant, undo, kernels, templates)


def _step(group: Group, name: str, target: Target, hints: Mapping[str, int]) -> Step:
    only = group.definitions[0]
    if isinstance(only, Extern):
        return only
    if isinstance(only, Template):
        return target.generate(target).compile_template(only, hints)
    return schedule(group, name, target, hints)


def _tasks(step: Step, group: Group, functions: dict[str, MachineFunction], target: Target) -> list[Task]:
    if isinstance(step, Extern):
        return [ExternTask(step)]
    if isinstance(step, CompiledTemplate):
        out = group.outs[0].name
        return [
            KernelTask(
                out,
                step.code,
                step.params,
                step.sizes,
                frozenset(each.name for each in group.outs),
                step.extent,
                step.work,
                step.chunk,
                f"{group.kind} {out}",
            )
        ]
    return [
        KernelTask(
            kernel.name,
            functions[kernel.name],
            kernel.params,
            tuple(map(Index.sym, kernel.sizes)),
            _stores(kernel),
            parallel_extent(kernel),
            iteration_work(kernel),
            target.kernel_work,
            kernel.origin,
        )
        for kernel in step
    ]


def _stores(kernel: Kernel) -> frozenset[str]:
    params = {buffer.name for buffer in kernel.params}
    stored = {stmt.buffer.name for stmt in statements(kernel.body) if isinstance(stmt, Store)}
    return frozenset(stored & params)
