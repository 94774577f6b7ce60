"""`Group`: definitions that become one kernel, as `fuse` makes them and `schedule` takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, cast

from lampwork.loops.expr import definition_exprs, loads
from lampwork.loops.nodes import Axis, Buffer, Definition, Extern, View
from lampwork.records import record

GroupKind = Literal["pointwise", "rows", "scan", "gemm", "pack", "extern"]


@record
class Group:
    """Definitions in order, to run as one.

    pointwise: Maps over the same axes, which read each other only at the same point.
    rows: Maps and Reduces whose first axes are `rows`: what one row makes is read by the same row only. A Reduce has
        exactly `rows` as its axes; a Map has `rows` and then axes of its own.
    scan, gemm, pack, extern: exactly one definition of that type.

    `private` are the buffers that nothing outside of the group reads: they need no memory but the kernel's scratch.
    """

    kind: GroupKind
    definitions: tuple[Definition, ...]
    rows: tuple[Axis, ...] = ()
    private: frozenset[str] = frozenset()

    @property
    def outs(self) -> tuple[Buffer, ...]:
        """The buffers that the group writes for others, in order."""
        return tuple(
            out for each in self.definitions for out in outs_of(each) if out.name not in self.private
        )

    @property
    def reads(self) -> frozenset[str]:
        """The names of the buffers that the group reads and does not make itself."""
        found = {name for each in self.definitions for name in reads_of(each)}
        return frozenset(found - {out.name for each in self.definitions for out in outs_of(each)})


@record
class Decision:
    """One step of fusion taken or not taken, and why."""

    what: str
    verdict: bool
    reason: str

    def __str__(self) -> str:
        return f"{'yes' if self.verdict else 'no '}  {self.what}: {self.reason}"


def outs_of(definition: Definition) -> tuple[Buffer, ...]:
    """The buffers a definition makes."""
    return definition.outs if isinstance(definition, Extern) else (definition.out,)


def reads_of(definition: Definition) -> set[str]:
    """The names of the buffers a definition reads."""
    if isinstance(definition, Extern):
        values = (*definition.args, *(value for _, value in definition.kwargs))
        return {view.buffer.name for view in views_in(values)}
    return {load.buffer.name for expr in definition_exprs(definition) for load in loads(expr)}


def views_in(value: object) -> Iterator[View]:
    """The Views in an Extern's arguments, however nested."""
    if isinstance(value, View):
        yield value
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[object]", value):
            yield from views_in(item)
