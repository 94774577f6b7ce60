"""What a definition makes, reads, writes to in place, and over which axes its value is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from lampwork.loops.ir.expr import loads
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.nodes import (
    Attention,
    Axis,
    Buffer,
    Definition,
    Extern,
    Gemm,
    Load,
    Map,
    Recurrence,
    RecurrenceGradient,
    Reduce,
    Scan,
    View,
)
from lampwork.loops.ir.traverse import Node


def outs_of(definition: Definition) -> tuple[Buffer, ...]:
    """The buffers a definition makes."""
    if isinstance(definition, Recurrence):
        kept = () if definition.kept is None else (definition.kept,)
        return (definition.out, definition.memory, *kept)
    if isinstance(definition, RecurrenceGradient):
        sums = () if definition.sums is None else (definition.sums,)
        return (definition.out, definition.first, definition.memory, *sums)
    return definition.outs if isinstance(definition, Extern) else (definition.out,)


def reads_of(definition: Definition) -> set[str]:
    """The names of the buffers a definition reads."""
    if isinstance(definition, Extern):
        values = (*definition.args, *(value for _, value in definition.kwargs))
        return {view.buffer.name for view in views_in(values)}
    roots: list[Node] = definition.nodes()
    if isinstance(definition, Map) and definition.onto is not None:
        stored = Load(definition.out, definition.index)
        data = {load.buffer.name for load in loads(stored)} - {definition.out.name}
        return data | {definition.onto.name} | {load.buffer.name for load in loads(*roots)}
    return {load.buffer.name for load in loads(*roots)}


def views_in(value: object) -> Iterator[View]:
    """The Views in an Extern's arguments, however nested."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[object]", value):
            yield from views_in(item)


def mutated_by(definition: Definition) -> set[str]:
    """The buffers that an Extern writes to in place."""
    if not isinstance(definition, Extern):
        return set()
    written = [definition.args[position] for position in definition.mutates]
    return {view.buffer.name for view in views_in(written)}


def overwritten_by(definition: Definition) -> set[str]:
    """The buffer whose memory a Map writes to in place, if it can: what reads it has to run before."""
    if isinstance(definition, Map) and definition.onto is not None:
        return {definition.onto.name}
    return set()


def points(axes: Iterable[Axis]) -> Index:
    """How many points the axes span."""
    total = ONE
    for axis in axes:
        total = total * axis.extent
    return total


def domain(definition: Definition) -> tuple[Axis, ...]:
    """All axes over which a definition's value (a Gemm's epilogue, an Attention's scores) is computed.

    None for Externs, packing and recurrences.
    """
    if isinstance(definition, Map):
        return definition.axes
    if isinstance(definition, Reduce):
        return (*definition.axes, *definition.over)
    if isinstance(definition, Scan):
        return (*definition.axes, definition.along)
    if isinstance(definition, Gemm | Attention):
        return (*definition.batch, definition.m, definition.n)
    return ()


def extents_of(axes: Iterable[Axis]) -> dict[str, Index]:
    return {axis.name: axis.extent for axis in axes}


def name_of(definition: Definition) -> str:
    outs = outs_of(definition)
    return outs[0].name if outs else "?"
