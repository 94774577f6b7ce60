"""The memory plan: tasks over named buffers -> a `Layout` over numbered values -> a `Program`.

Every intermediate buffer gets a range of one arena; two buffers share bytes if their lifetimes do not overlap. What
leaves the region is allocated afresh for each call, so a result is never overwritten behind the user's back.

A `Layout` is the plan before any number is known: `place` puts numbers for the symbols in sizes, strides, offsets and
ranges, and gives the arena's buffers their offsets. Without symbols there is one Program, for no values. Symbols that
are no sizes, but only take part in arithmetic, have no number in a Program: it takes their values with each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from lampwork.backends.native.arena import ALIGNMENT, DEVICE_ALIGNMENT
from lampwork.backends.native.arena import place as place_in_arena
from lampwork.backends.native.place_pieces import ASSEMBLE, Place
from lampwork.backends.native.place_writes import Write, place_writes
from lampwork.backends.native.tasks import ExternTask, KernelTask, Task, task_reads, task_writes
from lampwork.codegen.target import DeviceFunction
from lampwork.config import current
from lampwork.errors import BackendError
from lampwork.graph.devices import CPU
from lampwork.graph.origin import Labels
from lampwork.graph.symbols import float_of_bits
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.index import ZERO, Index, is_nonnegative
from lampwork.loops.ir.nodes import Buffer, FloatOfBits, Opaque, View
from lampwork.loops.ir.symbols import Sizes
from lampwork.lower.dtypes import TORCH_DTYPES
from lampwork.lower.pairs import AS_COMPLEX
from lampwork.records import record
from lampwork.runtime.program import (
    CallAten,
    CallKernel,
    Instruction,
    Launch,
    Program,
    Ref,
    Release,
    Scalar,
    Value,
    ValueKind,
)
from lampwork.runtime.steps import StepFacts
from lampwork.standard import functools


@record
class Result:
    """One output of a graph: a buffer as it is (`view` None), or seen through a view."""

    buffer: Buffer
    view: View | None = None


@record
class Slot:
    """A `Value` whose sizes may be symbolic, or whose place in the arena is not known yet."""

    kind: ValueKind
    dtype: torch.dtype
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index = ZERO
    base: int = -1
    position: int = -1
    device: torch.device = CPU

    def place(self, sizes: Sizes, offset: int) -> Value:
        return Value(
            self.kind,
            self.dtype,
            sizes.numbers(self.shape),
            sizes.numbers(self.strides),
            offset,
            self.base,
            self.position,
            self.device,
        )

    def nbytes(self, sizes: Sizes) -> int:
        """Bytes from the first to past the last element."""
        shape = sizes.numbers(self.shape)
        if 0 in shape:
            return 0
        strides = sizes.numbers(self.strides)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        return (last + 1) * self.dtype.itemsize


@record
class KernelStep:
    """A `CallKernel` whose range or sizes are symbolic."""

    task: KernelTask
    buffers: tuple[int, ...]
    outside: tuple[int, ...] = ()

    def place(self, sizes: Sizes, places: Mapping[Index, int]) -> CallKernel:
        task = self.task
        work = max(1, sizes.number(task.work))
        code = task.code
        launch = None
        if isinstance(code, DeviceFunction):
            shared, counters = sizes.number(code.shared), sizes.number(code.counters)
            launch = Launch(code.block, code.per_block, shared, code.cluster, counters)
        return CallKernel(
            code,
            self.buffers,
            tuple(_size(size, sizes, places) for size in task.sizes),
            sizes.number(task.extent),
            max(1, -(-task.chunk // work)),
            task.origin or task.name,
            self.outside,
            launch,
        )

    @property
    def is_static(self) -> bool:
        return all(size.is_const for size in (*self.task.sizes, *self.numbers))

    @property
    def numbers(self) -> tuple[Index, ...]:
        """What has to be known to place it."""
        task = self.task
        code = task.code
        launch = (code.shared, code.counters) if isinstance(code, DeviceFunction) else ()
        return (task.extent, task.work, *launch)


@record
class AtenStep:
    """A `CallAten` that has indices among its arguments."""

    call: CallAten

    def place(self, sizes: Sizes, places: Mapping[Index, int]) -> CallAten:
        call = self.call
        args = tuple(_argument(value, sizes, places) for value in call.args)
        kwargs = tuple((key, _argument(value, sizes, places)) for key, value in call.kwargs)
        return CallAten(call.op, args, kwargs, call.outs, call.name)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (*self.call.args, *(value for _, value in self.call.kwargs))


def _size(size: Index, sizes: Sizes, places: Mapping[Index, int]) -> int | Scalar:
    place = places.get(size)
    return sizes.number(size) if place is None else Scalar(place)


def _argument(argument: Any, sizes: Sizes, places: Mapping[Index, int]) -> Any:
    index = argument.bits if isinstance(argument, FloatOfBits) else argument
    if isinstance(index, Index) and (place := places.get(index)) is not None:
        return Scalar(place, isinstance(argument, FloatOfBits))
    return _with_numbers(argument, sizes)


def _with_numbers(argument: Any, sizes: Sizes) -> Any:
    if isinstance(argument, Index):
        return sizes.number(argument)
    if isinstance(argument, FloatOfBits):
        return float_of_bits(sizes.number(argument.bits))
    if isinstance(argument, list | tuple):
        items = [_with_numbers(item, sizes) for item in cast("list[Any]", argument)]
        return items if isinstance(argument, list) else tuple(items)
    return argument


def _holds_index(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(map(_holds_index, cast("list[Any]", argument)))
    return isinstance(argument, Index | FloatOfBits)


FactsOf = Callable[[Sequence[Task | None], Sizes], Sequence[StepFacts]]


@record
class Layout:
    """A program without numbers.

    memory: (whether it is taken or given back, value number), in the order of the steps. keys: the symbols that
    `place` needs values for, sizes all. scalars: the numbers that the program takes with each call, in order.
    """

    values: tuple[Value | Slot, ...]
    memory: tuple[tuple[bool, int], ...]
    steps: tuple[Instruction | KernelStep | AtenStep, ...]
    outputs: tuple[int, ...]
    n_inputs: int
    n_bound: int
    constants: Program | None
    keys: frozenset[str]
    scalars: tuple[Index, ...]
    undo: tuple[tuple[int, CallKernel | KernelStep], ...] = ()
    device: torch.device = CPU
    """What the kernels run on."""
    names: Mapping[str, int] = field(default_factory=dict[str, int])
    """Buffers by name -> the number of their value, to look at."""
    work: tuple[Task | None, ...] = ()
    """What each call among the steps does; None: it writes back to an input."""
    name: str = ""
    """Of what it computes, for profilers."""
    labels: tuple[Labels, ...] = ()
    """As those of a Program."""
    facts: FactsOf | None = None
    """Tells of `work`, for given sizes, what it computes."""
    family: object = field(default_factory=object, compare=False, repr=False)
    """As that of a Program."""

    def place(self, values: Mapping[str, int], in_arena: bool = True) -> Program:
        """The program for these values of the `keys`. `in_arena`: the CPU's values have their places in its arena.

        Raises:
            BackendError: a symbol has no value.
        """
        sizes = Sizes(values)
        places = {index: place for place, index in enumerate(self.scalars)}
        try:
            offsets, arena_bytes = self._offsets(sizes, CPU) if in_arena else ({}, 0)
            device_bytes = 0
            if self.device != CPU:
                own, device_bytes = self._offsets(sizes, self.device)
                offsets |= own
            placed = tuple(
                value
                if isinstance(value, Value)
                else value.place(
                    sizes, offsets.get(number, 0) if value.kind == "arena" else sizes.number(value.offset)
                )
                for number, value in enumerate(self.values)
            )
            steps = tuple(
                step.place(sizes, places) if isinstance(step, KernelStep | AtenStep) else step
                for step in self.steps
            )
            undo = tuple(
                (at, step.place(sizes, places) if isinstance(step, KernelStep) else step)
                for at, step in self.undo
            )
        except KeyError as missing:
            raise BackendError(f"the symbol {missing.args[0]} has no value") from missing
        return Program(
            placed,
            steps,
            self.outputs,
            self.n_inputs,
            self.n_bound,
            arena_bytes,
            self.constants,
            len(self.scalars),
            undo,
            None if self.device == CPU else self.device,
            device_bytes,
            self.name,
            self.labels,
            facts=None if self.facts is None else functools.partial(self.facts, self.work, sizes),
            family=self.family,
        )

    def _offsets(self, sizes: Sizes, device: torch.device) -> tuple[dict[int, int], int]:
        """Where each arena value of a device lies, in bytes, and the size of its arena."""
        shares = current().arena  # else nothing is given back
        memory = [
            (is_taken, number)
            for is_taken, number in self.memory
            if self.values[number].device == device and (is_taken or shares)
        ]
        nbytes = {n: cast(Slot, self.values[n]).nbytes(sizes) for is_taken, n in memory if is_taken}
        return place_in_arena(memory, nbytes, ALIGNMENT if device == CPU else DEVICE_ALIGNMENT)


def _keys(
    values: Sequence[Value | Slot], steps: Sequence[Instruction | KernelStep | AtenStep]
) -> frozenset[str]:
    """The symbols that sizes, strides, ranges and lists among arguments depend on."""
    found: set[str] = set()
    for value in values:
        if isinstance(value, Slot):
            for index in (*value.shape, *value.strides, value.offset):
                found |= index.symbols()
    for step in steps:
        if isinstance(step, KernelStep):
            found.update(*(number.symbols() for number in step.numbers))
        elif isinstance(step, AtenStep):
            for index in _indices([a for a in step.arguments if isinstance(a, list | tuple)]):
                found |= index.symbols()
    return frozenset(found)


def _scalars(steps: Sequence[Instruction | KernelStep | AtenStep], keys: frozenset[str]) -> tuple[Index, ...]:
    """The numbers that calls take and that the keys alone do not give."""
    found: dict[Index, None] = {}
    for step in steps:
        if isinstance(step, KernelStep):
            found.update((size, None) for size in step.task.sizes if not size.symbols() <= keys)
        elif isinstance(step, AtenStep):
            for argument in step.arguments:
                index = argument.bits if isinstance(argument, FloatOfBits) else argument
                if isinstance(index, Index) and not index.symbols() <= keys:
                    found[index] = None
    return tuple(found)


def _indices(argument: Any) -> Iterator[Index]:
    if isinstance(argument, FloatOfBits):
        yield argument.bits
    elif isinstance(argument, Index):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in cast("list[Any]", argument):
            yield from _indices(item)


_NO_SIZES = Sizes({})


def _settled(slot: Slot) -> Value | Slot:
    """The slot as a value, where nothing about it depends on symbols or on the arena."""
    if slot.kind == "arena" or not all(index.is_const for index in (*slot.shape, *slot.strides, slot.offset)):
        return slot
    return slot.place(_NO_SIZES, slot.offset.constant)


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
            value = _settled(value)
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
        step = KernelStep(task, tuple(self.numbers[b.name] for b in task.params), written)
        return step.place(_NO_SIZES, {}) if step.is_static else step

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
    keys = _keys(planner.values, [*steps, *takes_back])
    return Layout(
        tuple(planner.values),
        tuple(memory),
        tuple(steps),
        numbers,
        len(inputs),
        len(bound),
        constant_program,
        keys,
        _scalars([*steps, *takes_back], keys),
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
    return AtenStep(call) if _holds_index((args, [value for _, value in kwargs])) else call
