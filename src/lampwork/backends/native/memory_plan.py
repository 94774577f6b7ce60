"""The memory plan: tasks over named buffers -> a `Layout` over numbered values (runtime/layout.py) -> a `Program`.

Every intermediate buffer gets a range of one arena; two buffers share bytes if their lifetimes do not overlap. What
leaves the region is allocated afresh for each call, so a result is never overwritten behind the user's back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from lampwork.backends.native.place_pieces import ASSEMBLE, Place
from lampwork.backends.native.place_writes import Write, place_writes
from lampwork.backends.native.tasks import ExternTask, KernelTask, Task, task_reads, task_writes
from lampwork.errors import BackendError
from lampwork.graph.devices import CPU
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.index import ZERO, Index, is_nonnegative
from lampwork.loops.ir.nodes import Buffer, Opaque, View
from lampwork.lower.dtypes import TORCH_DTYPES
from lampwork.lower.pairs import AS_COMPLEX
from lampwork.records import record
from lampwork.runtime.layout import (
    NO_SIZES,
    AtenStep,
    KernelStep,
    Layout,
    Slot,
    holds_index,
    keys_of,
    scalars_of,
    settled,
)
from lampwork.runtime.program import (
    CallAten,
    CallKernel,
    Instruction,
    Program,
    Ref,
    Release,
    Value,
    ValueKind,
)


@record
class Result:
    """One output of a graph: a buffer as it is (`view` None), or seen through a view."""

    buffer: Buffer
    view: View | None = None


NO_PLACES: Mapping[str, Place] = {}
NO_UPDATES: Mapping[str, str] = {}


@record
class Devices:
    """`main`: what the kernels run on. `elsewhere`: the buffers that are on another device."""

    main: torch.device = CPU
    elsewhere: Mapping[str, torch.device] = field(default_factory=dict[str, torch.device])

    def of(self, name: str) -> torch.device:
        return self.elsewhere.get(name, self.main)


ON_CPU = Devices()


def kernel_step(task: KernelTask, buffers: tuple[int, ...], outside: tuple[int, ...] = ()) -> KernelStep:
    """A call of a task's function with these values."""
    name = task.origin or task.name
    return KernelStep(task.code, buffers, task.sizes, task.extent, task.work, task.chunk, name, outside)


@dataclass(slots=True)
class _Planner:
    places: Mapping[str, Place]
    devices: Devices
    values: list[Value | Slot] = field(default_factory=list[Value | Slot])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    layouts: dict[int, tuple[tuple[Index, ...], tuple[Index, ...]]] = field(
        default_factory=dict[int, tuple[tuple[Index, ...], tuple[Index, ...]]]
    )
    views: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])

    def add(self, value: Value | Slot) -> int:
        number = len(self.values)
        if isinstance(value, Slot):
            self.layouts[number] = (value.shape, value.strides)
            value = settled(value)
        self.values.append(value)
        return number

    def name(self, buffer: Buffer, kind: ValueKind, position: int = -1) -> int:
        device = self.devices.of(buffer.name)
        if isinstance(buffer, Opaque):
            number = self.add(Value(kind, position=position, device=device))
        else:
            dtype = TORCH_DTYPES[buffer.dtype]
            slot = Slot(kind, dtype, buffer.shape, buffer.strides, position=position, device=device)
            number = self.add(slot)
        self.numbers[buffer.name] = number
        return number

    def require_fit(self, param: Buffer, task: KernelTask) -> None:
        """Raises BackendError unless a kernel's parameter is known to lie in the memory of the buffer it stands for:
        its code relies on that."""
        layout = self.layouts.get(self.numbers[param.name])
        if layout is None:
            raise BackendError(f"kernel {task.name} takes {param.name}, whose memory is known to torch alone")
        if layout == (param.shape, param.strides):
            return
        there = elements_of(Buffer(param.name, param.dtype, *layout))
        if not is_nonnegative(there - elements_of(param)):
            raise BackendError(
                f"kernel {task.name} takes more of {param.name} than the {there} elements there are"
            )

    def view(self, view: View, *, distinct: bool = False) -> int:
        """The number of a buffer seen through shape, strides and offset; the buffer's own if that changes nothing,
        unless it is to be `distinct`."""
        if (place := self.places.get(view.buffer.name)) is not None:
            view = View(place.whole, view.shape, view.strides, place.offset + view.offset)
        base = self.numbers[view.buffer.name]
        if isinstance(view.buffer, Opaque):
            return base
        if not distinct and view.offset == ZERO and self.layouts.get(base) == (view.shape, view.strides):
            return base
        key = (base, view.shape, view.strides, view.offset)
        if key not in self.views:
            dtype, device = TORCH_DTYPES[view.buffer.dtype], self.values[base].device
            slot = Slot("view", dtype, view.shape, view.strides, view.offset, base=base, device=device)
            self.views[key] = self.add(slot)
        return self.views[key]

    def kernel(self, task: KernelTask, outside: str | None = None) -> CallKernel | KernelStep:
        """A call of a kernel. `outside`: the buffer among its params that lies in the memory of an input."""
        written = () if outside is None else (self.numbers[outside],)
        step = kernel_step(task, tuple(self.numbers[b.name] for b in task.params), written)
        return step.place(NO_SIZES, {}) if step.is_static else step

    def argument(self, argument: Any) -> Any:
        if isinstance(argument, View):
            return Ref(self.view(argument))
        if isinstance(argument, list | tuple):
            items = [self.argument(item) for item in cast("list[Any]", argument)]
            return items if isinstance(argument, list) else tuple(items)
        return argument


def plan(
    tasks: Sequence[Task],
    inputs: Sequence[Buffer | None],
    bound: Sequence[Buffer | None],
    constants: Sequence[Buffer],
    outputs: Sequence[Result],
    layouts: Mapping[str, Buffer],
    mutations: Sequence[tuple[int, int]] = (),
    constant_program: Program | None = None,
    writes: Sequence[Write] = (),
    places: Mapping[str, Place] = NO_PLACES,
    devices: Devices = ON_CPU,
    updates: Mapping[str, str] = NO_UPDATES,
) -> Layout:
    """Number every buffer of `tasks`, and say when it takes memory.

    Args:
        inputs, bound: the placeholders' buffers; None for one that nothing reads.
        constants: buffers that the constant program provides, in its output order.
        outputs: what the program returns, in order.
        layouts: buffers by name with the shape that the graph gives them; kernels see memory flat.
        mutations: (placeholder number, output number): that output is copied into that placeholder's tensor at the end.
        writes: the buffers that are others with some elements replaced, in order.
        places: the buffers that lie in others.
        devices: where the buffers are.
        updates: a buffer that lies in another one's memory -> that.

    Raises:
        BackendError: a task reads a buffer that nothing wrote.
    """
    planner = _Planner(places, devices)
    groups: tuple[tuple[ValueKind, Sequence[Buffer | None]], ...] = (
        ("input", inputs),
        ("bound", bound),
        ("constant", constants),
    )
    for kind, group in groups:
        for position, buffer in enumerate(group):
            if buffer is None:
                planner.add(Value(kind, position=position))
            else:
                planner.name(buffer, kind, position)
    placed = place_writes(tasks, _contents([*inputs, *bound], outputs, mutations), writes)
    tasks = placed.tasks
    placed.memory.update((name, place.whole.name) for name, place in places.items())
    placed.memory.update(updates)
    leaving = {placed.root(result.buffer.name) for result in outputs}
    for task in tasks:
        if not isinstance(task, KernelTask) and task.extern.target == AS_COMPLEX:
            leaving |= {placed.root(name) for name in task_reads(task)}
    touched = [{placed.root(name) for name in task_reads(task) | task_writes(task)} for task in tasks]
    last_use: dict[str, int] = {}
    for at, names in enumerate(touched):
        last_use.update((name, at) for name in names)
    last_use.update((placed.root(name), len(tasks)) for name in placed.kept)
    undo: list[tuple[int, CallKernel | KernelStep]] = []

    held: dict[str, int] = {}
    memory: list[tuple[bool, int]] = []
    steps: list[Instruction | KernelStep | AtenStep] = []
    work: list[Task | None] = []
    aten_values: dict[str, int] = {}

    def give_memory(buffer: Buffer) -> None:
        if buffer.name in leaving:
            planner.name(buffer, "fresh")
        else:
            held[buffer.name] = planner.name(buffer, "arena")
            memory.append((True, held[buffer.name]))

    for at, task in enumerate(tasks):
        if isinstance(task, KernelTask):
            for buffer in task.params:
                if buffer.name not in planner.numbers and buffer.name in places:
                    # The first piece of a whole brings memory for all of it.
                    place = places[buffer.name]
                    if place.whole.name not in planner.numbers:
                        give_memory(place.whole)
                    laid_out = layouts.get(buffer.name, buffer)
                    view = View(laid_out, laid_out.shape, laid_out.strides, ZERO)
                    planner.numbers[buffer.name] = planner.view(view)
                if buffer.name not in planner.numbers and buffer.name in placed.memory:
                    planner.numbers[buffer.name] = planner.numbers[placed.memory[buffer.name]]
                if buffer.name in planner.numbers:
                    planner.require_fit(buffer, task)
                    continue
                if buffer.name not in task.writes:
                    raise BackendError(f"kernel {task.name} reads {buffer.name}, which nothing has written")
                param, buffer = buffer, layouts.get(buffer.name, buffer)
                give_memory(buffer)
                planner.require_fit(param, task)
            if (write := placed.outside.get(at)) is not None:
                undo.append((len(steps), planner.kernel(cast(KernelTask, write.undo))))
            steps.append(planner.kernel(task, None if write is None else write.out))
            work.append(task)
        elif task.extern.target != ASSEMBLE:
            steps.append(_call_extern(planner, task, aten_values))
            work.append(task)
        ended = [name for name in touched[at] if last_use[name] == at]
        for name in sorted(ended):
            if name in held:
                memory.append((False, held.pop(name)))
        # Views are made afresh by the interpreter, so only the owner needs releasing.
        released = tuple(aten_values[n] for n in sorted(ended) if n in aten_values and n not in leaving)
        if released:
            steps.append(Release(released))

    numbers = tuple(_output(planner, result) for result in outputs)
    for placeholder, output in mutations:
        steps.append(
            CallAten(
                "aten::copy_.default",
                (Ref(placeholder), Ref(numbers[output])),
                name="write back to an input",
            )
        )
        work.append(None)
    takes_back = [step for _, step in undo]
    keys = keys_of(planner.values, [*steps, *takes_back])
    return Layout(
        tuple(planner.values),
        tuple(memory),
        tuple(steps),
        numbers,
        len(inputs),
        len(bound),
        constant_program,
        keys,
        scalars_of([*steps, *takes_back], keys),
        tuple(undo),
        devices.main,
        planner.numbers,
        tuple(work),
    )


def _contents(
    placeholders: Sequence[Buffer | None], outputs: Sequence[Result], mutations: Sequence[tuple[int, int]]
) -> dict[str, str]:
    """Placeholder's buffer -> the buffer that is copied into it at the end, as it is."""
    found: dict[str, str] = {}
    for place, output in mutations:
        buffer, result = placeholders[place], outputs[output]
        if buffer is not None and result.view is None:
            found[buffer.name] = result.buffer.name
    return found


def _output(planner: _Planner, result: Result) -> int:
    if result.buffer.name not in planner.numbers:
        raise BackendError(f"the output {result.buffer.name} is written by nothing")
    if result.view is None:
        return planner.numbers[result.buffer.name]
    return planner.view(result.view, distinct=True)


def _call_extern(planner: _Planner, task: ExternTask, aten_values: dict[str, int]) -> CallAten | AtenStep:
    extern = task.extern
    args = tuple(planner.argument(a) for a in extern.args)
    kwargs = tuple((k, planner.argument(v)) for k, v in extern.kwargs)
    outs: list[int] = []
    for buffer in extern.outs:
        number = planner.name(buffer, "aten")
        aten_values[buffer.name] = number
        outs.append(number)
    call = CallAten(extern.target, args, kwargs, tuple(outs), extern.origin or extern.target)
    return AtenStep(call) if holds_index((args, [value for _, value in kwargs])) else call
