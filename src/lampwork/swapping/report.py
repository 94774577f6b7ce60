"""The report of a swap."""

from __future__ import annotations

from torch import nn

from lampwork.records import record
from lampwork.swapping.difference import Difference
from lampwork.swapping.install import Installed, take_all_out
from lampwork.swapping.sites import class_of


@record
class Change:
    """One module that was swapped. `names`: all its names, several if it is shared. `key`: the key that selected it."""

    names: tuple[str, ...]
    old: nn.Module
    new: nn.Module
    key: str

    @property
    def name(self) -> str:
        return self.names[0]

    def __str__(self) -> str:
        return f"{', '.join(self.names)}: {class_of(self.old).__name__} -> {class_of(self.new).__name__}"


@record
class Unmatched:
    """A key that selects no module of the model, and what comes nearest to it."""

    key: str
    reason: str


@record
class SwapReport:
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

    def __str__(self) -> str:
        lines = [f"swapped {len(self.changes)} modules"]
        lines += [f"  {change}  (by {change.key})" for change in self.changes]
        lines += [f"key {item.key} changed nothing: {item.reason}" for item in self.unmatched]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"difference of {difference}" for difference in self.differences]
        return "\n".join(lines)
