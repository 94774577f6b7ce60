"""The report of a swap."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from lampwork.display import Block, Shown, Table
from lampwork.records import record
from lampwork.swapping.difference import Difference
from lampwork.swapping.install import Installed, take_all_out
from lampwork.swapping.sites import class_of


@record
class Change(Shown):
    """One module that was swapped. `names`: all its names, several if it is shared. `key`: the key that selected it."""

    names: tuple[str, ...]
    old: nn.Module
    new: nn.Module
    key: str

    @property
    def name(self) -> str:
        return self.names[0]

    def _brief(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{', '.join(self.names)}: {class_of(self.old).__name__} -> {class_of(self.new).__name__}"


@record
class Unmatched(Shown):
    """A key that selects no module of the model, and what comes nearest to it."""

    key: str
    reason: str


@record
class SwapReport(Shown):
    """What `swap` changed. `str()` lists it, `undo()` reverts it.

    `changes`: the modules that were swapped. `unmatched`: keys that changed nothing. `differences`: with `check`, one
    for each tensor of the output. `notes`: modules that the keys select but `swap` cannot reach.
    """

    model: nn.Module
    changes: tuple[Change, ...]
    unmatched: tuple[Unmatched, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    _installed: list[Installed]

    def undo(self) -> None:
        """Put every old module back, in the mode that its replacement is in now. A second call does nothing.

        Raises:
            OptionError: a module has been swapped again since; the rest stays as it is.
        """
        take_all_out(self._installed)

    def _brief(self) -> str:
        brief = f"{type(self.model).__name__}: {_swapped(self)}"
        return brief + "".join(f", key {item.key} changed nothing" for item in self.unmatched)

    def _blocks(self) -> Iterable[Block]:
        yield _swapped(self)
        if self.changes:
            rows = [
                (", ".join(c.names), class_of(c.old).__name__, class_of(c.new).__name__, c.key)
                for c in self.changes
            ]
            yield Table(("module", "was", "is", "by"), tuple(rows))
        yield from (f"key {item.key} changed nothing: {item.reason}" for item in self.unmatched)
        yield from (f"note: {note}" for note in self.notes)
        if self.differences:
            rows = [(d.output or "output", f"{d.max_abs:.3g}", f"{d.relative:.3g}") for d in self.differences]
            yield Table(("output", "max difference", "relative"), tuple(rows))

    def __str__(self) -> str:
        lines = [_swapped(self)]
        lines += [f"  {change}  (by {change.key})" for change in self.changes]
        lines += [f"key {item.key} changed nothing: {item.reason}" for item in self.unmatched]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"difference of {difference}" for difference in self.differences]
        return "\n".join(lines)


def _swapped(report: SwapReport) -> str:
    return f"swapped {len(report.changes)} modules"
