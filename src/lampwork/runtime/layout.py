"""A `Layout`: a program before any number is known.

`place` puts numbers for the symbols in sizes, strides, offsets and ranges, and gives the arena's buffers their offsets.
Without symbols there is one Program, for no values. Symbols that are no sizes, but only take part in arithmetic, have
no number in a Program: it takes their values with each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import torch

from lampwork.codegen.target import DeviceFunction, HostFunction
from lampwork.config import current
from lampwork.errors import BackendError
from lampwork.graph.devices import CPU
from lampwork.graph.origin import Labels
from lampwork.graph.symbols import float_of_bits
from lampwork.loops.ir.index import ZERO, Index
from lampwork.loops.ir.nodes import FloatOfBits
from lampwork.loops.ir.symbols import Sizes
from lampwork.records import record
from lampwork.runtime.arena import ALIGNMENT, DEVICE_ALIGNMENT
from lampwork.runtime.arena import place as place_in_arena
from lampwork.runtime.program import (
    CallAten,
    CallKernel,
    Instruction,
    Launch,
    Program,
    Scalar,
    Value,
    ValueKind,
)
from lampwork.runtime.steps import StepFacts
from lampwork.standard import functools

NO_SIZES = Sizes({})


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
    """A `CallKernel` whose range or sizes are symbolic: `extent` iterations of `work` operations each, of which `chunk`
    are worth a thread."""

    code: HostFunction | DeviceFunction
    buffers: tuple[int, ...]
    sizes: tuple[Index, ...]
    extent: Index
    work: Index
    chunk: int
    name: str = ""
    outside: tuple[int, ...] = ()

    def place(self, sizes: Sizes, places: Mapping[Index, int]) -> CallKernel:
        code = self.code
        launch = None
        if isinstance(code, DeviceFunction):
            shared, counters = sizes.number(code.shared), sizes.number(code.counters)
            launch = Launch(code.block, code.per_block, shared, code.cluster, counters)
        return CallKernel(
            code,
            self.buffers,
            tuple(_size(size, sizes, places) for size in self.sizes),
            sizes.number(self.extent),
            grain_of(self.chunk, sizes.number(self.work)),
            self.name,
            self.outside,
            launch,
        )

    @property
    def is_static(self) -> bool:
        return all(size.is_const for size in (*self.sizes, *self.numbers))

    @property
    def numbers(self) -> tuple[Index, ...]:
        """What has to be known to place it."""
        code = self.code
        launch = (code.shared, code.counters) if isinstance(code, DeviceFunction) else ()
        return (self.extent, self.work, *launch)


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


def grain_of(chunk: int, work: int) -> int:
    """How many iterations a thread takes at once: as many as do the work of a chunk, where each does `work`."""
    return max(1, -(-chunk // max(1, work)))


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


def holds_index(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(map(holds_index, cast("list[Any]", argument)))
    return isinstance(argument, Index | FloatOfBits)


FactsOf = Callable[[Sequence[Any], Sizes], Sequence[StepFacts]]


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
    names: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)
    """Buffers by name -> the number of their value, to look at."""
    work: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """What each call among the steps does, to look at; None: it writes back to an input."""
    name: str = ""
    """Of what it computes, for profilers."""
    labels: tuple[Labels, ...] = ()
    """As those of a Program."""
    facts: FactsOf | None = field(default=None, compare=False, repr=False)
    """Tells of `work`, for given sizes, what it computes."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int], compare=False, repr=False)
    """How much of what it was made of, for people."""
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
            layout=self,
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


def keys_of(
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


def scalars_of(
    steps: Sequence[Instruction | KernelStep | AtenStep], keys: frozenset[str]
) -> tuple[Index, ...]:
    """The numbers that calls take and that the keys alone do not give."""
    found: dict[Index, None] = {}
    for step in steps:
        if isinstance(step, KernelStep):
            found.update((size, None) for size in step.sizes if not size.symbols() <= keys)
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


def settled(slot: Slot) -> Value | Slot:
    """The slot as a value, where nothing about it depends on symbols or on the arena."""
    if slot.kind == "arena" or not all(index.is_const for index in (*slot.shape, *slot.strides, slot.offset)):
        return slot
    return slot.place(NO_SIZES, slot.offset.constant)
