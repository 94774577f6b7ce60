"""`Group`: definitions that become one kernel, as `fuse` makes them and `schedule` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lampwork.loops.ir.definitions import outs_of, reads_of
from lampwork.loops.ir.nodes import Axis, Buffer, Definition, Map, Reduce
from lampwork.loops.ir.printing import format_axes, format_definitions
from lampwork.records import record

GroupKind = Literal["pointwise", "rows", "scan", "gemm", "attention", "pack", "recurrence", "extern"]


@record
class Group:
    """Definitions in order, to run as one.

    pointwise: Maps over the same axes, which read each other only at the same point.
    rows: Maps and Reduces whose first axes are `rows`: what one row makes is read by the same row only. A Reduce has
        exactly `rows` as its axes; a Map has `rows` and then axes of its own. On a card they may end with what all rows
        together give: Reduces of single values over `rows`, which read what rows make at the same row, and Maps of
        these, without axes (`ends_of`).
    scan, gemm, attention, pack, recurrence, extern: exactly one definition of that type.

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
    """One step of fusion taken or not taken, and why. `names`: the definitions that it is about, the one that would go
    first."""

    what: str
    verdict: bool
    reason: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{'yes' if self.verdict else 'no '}  {self.what}: {self.reason}"


def ends_of(group: Group) -> tuple[Map | Reduce, ...]:
    """The definitions of what all rows together give."""
    if not group.rows or group.kind != "rows":
        return ()
    return tuple(each for each in group.definitions if isinstance(each, Map | Reduce) and not each.axes)


def format_groups(groups: Sequence[Group]) -> str:
    """What became one kernel each, with the buffers that need no memory."""
    blocks: list[str] = []
    for number, group in enumerate(groups):
        head = f"group {number}: {group.kind}"
        if group.rows:
            head += f" over {format_axes(group.rows)}"
        if group.private:
            head += f"; private {', '.join(sorted(group.private))}"
        lines = format_definitions(group.definitions).splitlines()
        blocks.append("\n".join([head, *(f"    {line}" for line in lines)]))
    return "\n".join(blocks)
