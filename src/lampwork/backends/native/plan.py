"""The memory plan: tasks over named buffers -> a `Program` over numbered values.

Every intermediate buffer gets a range of one arena; two buffers share bytes if their lifetimes do not overlap. What
leaves the region is allocated afresh for each call, so a result is never overwritten behind the user's back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from lampwork.backends.native.tasks import ExternTask, KernelTask, Task
from lampwork.errors import BackendError
from lampwork.loops.index import Index
from lampwork.loops.nodes import Buffer, View
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

ALIGNMENT = 64  # bytes: one cache line, and the widest vector

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}


@dataclass(frozen=True, slots=True)
class Result:
    """One output of a graph: a buffer as it is (`view` None), or seen through a view."""

    buffer: Buffer
    view: View | None = None


def as_ints(sizes: Iterable[Index]) -> tuple[int, ...]:
    """Sizes as numbers.

    Raises:
        BackendError: a size is symbolic.
    """
    out: list[int] = []
    for size in sizes:
        value = size.as_int()
        if value is None:
            raise BackendError(f"the size {size} is symbolic; programs of static shapes only")
        out.append(value)
    return tuple(out)


def span_bytes(buffer: Buffer) -> int:
    """Bytes from the first to past the last element of a strided buffer."""
    shape, strides = as_ints(buffer.shape), as_ints(buffer.strides)
    if 0 in shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * TORCH_DTYPES[buffer.dtype].itemsize


class _Arena:
    """Offsets by best fit: a free block is reused by the smallest request order, neighbours are merged again."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []  # (offset, bytes), sorted by offset

    def take(self, nbytes: int) -> tuple[int, int]:
        need = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        fitting = [(size, i) for i, (_, size) in enumerate(self._free) if size >= need]
        if fitting:
            _, i = min(fitting)
            offset, size = self._free[i]
            self._free[i : i + 1] = [(offset + need, size - need)] if size > need else []
            return offset, need
        if self._free and sum(self._free[-1]) == self.size:
            # The last free block touches the end: grow it instead of leaving a hole.
            offset, _ = self._free.pop()
        else:
            offset = self.size
        self.size = offset + need
        return offset, need

    def give(self, offset: int, nbytes: int) -> None:
        self._free.append((offset, nbytes))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged


def _views(arguments: object) -> Iterator[View]:
    if isinstance(arguments, View):
        yield arguments
    elif isinstance(arguments, list | tuple):
        for item in arguments:
            yield from _views(item)


def _extern_reads(task: ExternTask) -> frozenset[str]:
    extern = task.extern
    arguments = [*extern.args, *(value for _, value in extern.kwargs)]
    return frozenset(view.buffer.name for view in _views(arguments))


def task_reads(task: Task) -> frozenset[str]:
    return task.reads if isinstance(task, KernelTask) else _extern_reads(task)


def task_writes(task: Task) -> frozenset[str]:
    return task.writes if isinstance(task, KernelTask) else frozenset(b.name for b in task.extern.outs)


@dataclass(slots=True)
class _Planner:
    values: list[Value] = field(default_factory=list[Value])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    views: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])

    def add(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def name(self, buffer: Buffer, value: Value) -> int:
        number = self.add(value)
        self.numbers[buffer.name] = number
        return number

    def view(self, view: View, *, distinct: bool = False) -> int:
        """The number of a buffer seen through shape, strides and offset; the buffer's own if that changes nothing,
        unless it is to be `distinct`."""
        base = self.numbers[view.buffer.name]
        if is_opaque(view.buffer):
            return base
        shape, strides = as_ints(view.shape), as_ints(view.strides)
        offset = as_ints((view.offset,))[0]
        seen = self.values[base]
        if not distinct and offset == 0 and (seen.shape, seen.strides) == (shape, strides):
            return base
        key = (base, shape, strides, offset)
        if key not in self.views:
            self.views[key] = self.add(
                Value("view", TORCH_DTYPES[view.buffer.dtype], shape, strides, offset, base=base)
            )
        return self.views[key]

    def argument(self, argument: Any) -> Any:
        if isinstance(argument, View):
            return Ref(self.view(argument))
        if isinstance(argument, list | tuple):
            items = [self.argument(item) for item in argument]
            return items if isinstance(argument, list) else tuple(items)
        return argument


def is_opaque(buffer: Buffer) -> bool:
    """Whether the buffer stands for a tensor that only ATen calls may read (a packed weight of oneDNN's)."""
    return cast(Any, buffer.shape) is None


def _value_of(buffer: Buffer, kind: ValueKind, position: int = -1, offset: int = 0) -> Value:
    if is_opaque(buffer):
        return Value(kind, position=position)
    return Value(
        kind,
        TORCH_DTYPES[buffer.dtype],
        as_ints(buffer.shape),
        as_ints(buffer.strides),
        offset=offset,
        position=position,
    )


def plan(
    tasks: Sequence[Task],
    inputs: Sequence[Buffer | None],
    bound: Sequence[Buffer | None],
    constants: Sequence[Buffer],
    outputs: Sequence[Result],
    layouts: Mapping[str, Buffer],
    mutations: Sequence[tuple[int, int]] = (),
    constant_program: Program | None = None,
    keepalive: tuple[Any, ...] = (),
) -> Program:
    """Place every buffer of `tasks` and number it.

    Args:
        inputs, bound: the placeholders' buffers; None for one that nothing reads.
        constants: buffers that the constant program provides, in its output order.
        outputs: what the program returns, in order.
        layouts: buffers by name with the shape that the graph gives them; kernels see memory flat.
        mutations: (placeholder number, output number): that output is copied into that placeholder's tensor at the end.

    Raises:
        BackendError: a task reads a buffer that nothing wrote.
    """
    planner = _Planner()
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
                planner.name(buffer, _value_of(buffer, kind, position))
    leaving = {result.buffer.name for result in outputs}
    last_use: dict[str, int] = {}
    for at, task in enumerate(tasks):
        for name in task_reads(task) | task_writes(task):
            last_use[name] = at

    arena = _Arena()
    placed: dict[str, tuple[int, int]] = {}
    instructions: list[Instruction] = []
    aten_values: dict[str, int] = {}
    for at, task in enumerate(tasks):
        if isinstance(task, KernelTask):
            for buffer in task.params:
                if buffer.name in planner.numbers:
                    continue
                if buffer.name not in task.writes:
                    raise BackendError(f"kernel {task.name} reads {buffer.name}, which nothing has written")
                buffer = layouts.get(buffer.name, buffer)
                if buffer.name in leaving:
                    planner.name(buffer, _value_of(buffer, "fresh"))
                else:
                    placed[buffer.name] = arena.take(span_bytes(buffer))
                    planner.name(buffer, _value_of(buffer, "arena", offset=placed[buffer.name][0]))
            numbers = tuple(planner.numbers[b.name] for b in task.params)
            instructions.append(
                CallKernel(task.address, numbers, (), task.extent, task.grain, task.origin or task.name)
            )
        else:
            instructions.append(_call_extern(planner, task, aten_values))
        ended = [name for name in task_reads(task) | task_writes(task) if last_use[name] == at]
        for name in sorted(ended):
            if name in placed:
                arena.give(*placed.pop(name))
        # Views are made afresh by the interpreter, so only the owner needs releasing.
        released = tuple(aten_values[n] for n in sorted(ended) if n in aten_values and n not in leaving)
        if released:
            instructions.append(Release(released))

    numbers = tuple(_output(planner, result) for result in outputs)
    for placeholder, output in mutations:
        instructions.append(
            CallAten(
                "aten::copy_.default",
                (Ref(placeholder), Ref(numbers[output])),
                name="write back to an input",
            )
        )
    return Program(
        tuple(planner.values),
        tuple(instructions),
        numbers,
        len(inputs),
        len(bound),
        arena.size,
        constant_program,
        keepalive,
    )


def _output(planner: _Planner, result: Result) -> int:
    if result.buffer.name not in planner.numbers:
        raise BackendError(f"the output {result.buffer.name} is written by nothing")
    if result.view is None:
        return planner.numbers[result.buffer.name]
    return planner.view(result.view, distinct=True)


def _call_extern(planner: _Planner, task: ExternTask, aten_values: dict[str, int]) -> CallAten:
    extern = task.extern
    args = tuple(planner.argument(a) for a in extern.args)
    kwargs = tuple((k, planner.argument(v)) for k, v in extern.kwargs)
    outs: list[int] = []
    for buffer in extern.outs:
        number = planner.name(buffer, _value_of(buffer, "aten"))
        aten_values[buffer.name] = number
        outs.append(number)
    return CallAten(extern.target, args, kwargs, tuple(outs), extern.origin or extern.target)


def format_program(program: Program, indent: str = "") -> str:
    """The program as text: values, then instructions."""
    lines = [f"{indent}arena {program.arena_bytes} bytes"]
    for number, value in enumerate(program.values):
        dtype = str(value.dtype).removeprefix("torch.") if value.dtype else "unread"
        place = {
            "input": f"input {value.position}",
            "bound": f"bound {value.position}",
            "constant": f"constant {value.position}",
            "arena": f"arena +{value.offset}",
            "view": f"view of %{value.base} +{value.offset}",
        }.get(value.kind, value.kind)
        lines.append(f"{indent}%{number}: {dtype}{list(value.shape)} {list(value.strides)} {place}")
    for instruction in program.instructions:
        lines.append(indent + _format_instruction(instruction))
    lines.append(f"{indent}return {', '.join(f'%{n}' for n in program.outputs)}")
    if program.constants is not None:
        lines.append(f"{indent}constants:")
        lines.append(format_program(program.constants, indent + "  "))
    return "\n".join(lines)


def _format_argument(argument: object) -> str:
    if isinstance(argument, Ref):
        return f"%{argument.value}"
    if isinstance(argument, list | tuple):
        return f"[{', '.join(_format_argument(a) for a in argument)}]"
    return repr(argument)


def _format_instruction(instruction: Instruction) -> str:
    if isinstance(instruction, CallKernel):
        buffers = ", ".join(f"%{n}" for n in instruction.buffers)
        return f"kernel {instruction.name}({buffers}) over {instruction.extent} by {instruction.grain}"
    if isinstance(instruction, CallAten):
        outs = ", ".join(f"%{n}" for n in instruction.outs)
        args = [_format_argument(a) for a in instruction.args]
        args += [f"{k}={_format_argument(v)}" for k, v in instruction.kwargs]
        return f"{outs + ' = ' if outs else ''}{instruction.op}({', '.join(args)})"
    return f"release {', '.join(f'%{n}' for n in instruction.values)}"
