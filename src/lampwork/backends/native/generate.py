"""Code for every fusion group: groups in, tasks with addresses out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from lampwork.backends.native.tasks import ExternTask, KernelTask, Task
from lampwork.codegen.llvm.compile import shared_compiler
from lampwork.codegen.llvm.isa import Isa
from lampwork.codegen.llvm.templates.compile import CompiledTemplate, shared_templates
from lampwork.codegen.llvm.templates.gemm import supports
from lampwork.config import current
from lampwork.errors import CodegenError
from lampwork.loops.group import Group
from lampwork.loops.kernel import CHUNK, iteration_work, parallel_extent, statements
from lampwork.loops.nodes import Extern, Gemm, Kernel, PackB, Store
from lampwork.loops.schedule import schedule
from lampwork.loops.symbols import NO_HINTS
from lampwork.loops.verify import verify_kernel

Step = list[Kernel] | CompiledTemplate | Extern


@dataclass(slots=True)
class Generated:
    """The tasks of the main and of the constant part, and what is worth a look."""

    tasks: list[Task]
    constant_tasks: list[Task]
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    templates: list[CompiledTemplate] = field(default_factory=list[CompiledTemplate])
    keepalive: tuple[Any, ...] = ()


def generate(
    groups: Sequence[Group], constant_groups: Sequence[Group], isa: Isa, hints: Mapping[str, int] = NO_HINTS
) -> Generated:
    """Schedule all groups, compile what is new in as few modules as possible, and say what to call in which order.

    Args:
        hints: likely values of symbols, to choose by.

    Raises:
        BackendError: a group has no schedule, or code generation failed.
    """
    steps: list[Step] = []
    kernels: list[Kernel] = []
    templates: list[CompiledTemplate] = []
    for number, group in enumerate((*groups, *constant_groups)):
        step = _step(group, f"k{number}", isa, hints)
        steps.append(step)
        if isinstance(step, list):
            kernels.extend(step)
        elif isinstance(step, CompiledTemplate):
            templates.append(step)
    if current().verify:
        for kernel in kernels:
            verify_kernel(kernel)
    compiled = shared_compiler(isa).compile(kernels)
    tasks = [
        _tasks(step, group, compiled.addresses)
        for step, group in zip(steps, (*groups, *constant_groups), strict=True)
    ]
    main = [task for each in tasks[: len(groups)] for task in each]
    constant = [task for each in tasks[len(groups) :] for task in each]
    keepalive = (*compiled.keepalive, *(t.code for t in templates))
    return Generated(main, constant, kernels, templates, keepalive)


def _step(group: Group, name: str, isa: Isa, hints: Mapping[str, int]) -> Step:
    only = group.definitions[0]
    if isinstance(only, Extern):
        return only
    if isinstance(only, Gemm | PackB):
        if isinstance(only, Gemm) and not supports(only, isa):
            raise CodegenError(f"no template for the gemm {only.out.name} of {only.a.buffer.dtype}")
        return shared_templates(isa).compile([only], hints)[0]
    return schedule(group, name, isa.lanes, hints)


def _tasks(step: Step, group: Group, addresses: dict[str, int]) -> list[Task]:
    if isinstance(step, Extern):
        return [ExternTask(step)]
    if isinstance(step, CompiledTemplate):
        definition = cast("Gemm | PackB", group.definitions[0])
        kind = "gemm" if isinstance(definition, Gemm) else "pack"
        out = definition.out.name
        return [
            KernelTask(
                out,
                step.address,
                step.params,
                step.sizes,
                frozenset((out,)),
                step.extent,
                step.work,
                step.chunk,
                f"{kind} {out}",
            )
        ]
    return [
        KernelTask(
            kernel.name,
            addresses[kernel.name],
            kernel.params,
            kernel.sizes,
            _stores(kernel),
            parallel_extent(kernel),
            iteration_work(kernel),
            CHUNK,
            kernel.origin,
        )
        for kernel in step
    ]


def _stores(kernel: Kernel) -> frozenset[str]:
    params = {buffer.name for buffer in kernel.params}
    stored = {stmt.buffer.name for stmt in statements(kernel.body) if isinstance(stmt, Store)}
    return frozenset(stored & params)
