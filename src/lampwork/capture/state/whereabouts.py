"""Where an interpreter is, as nodes, guards and records say it.

Each node asks, so what stays the same is kept on the frames: the lines of the callers do not change while a frame runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from lampwork.capture.model.frame import Above, Frame
from lampwork.capture.model.within import OUTSIDE, Within
from lampwork.capture.state.module_names import ModuleRoots
from lampwork.errors import Location
from lampwork.graph.origin import NOWHERE, Labels, Origin, Place

if TYPE_CHECKING:
    from lampwork.capture.state.environment import Environment

_UNKNOWN = Location("<unknown>", 0)
_ROOT = Above((), None)


class Whereabouts:
    """`frames`: the active ones, root first. `within`: the module whose `forward` runs. `arguments`: the names of the
    root frame's parameters, by the labels of what is passed for them."""

    def __init__(self, frames: list[Frame], environment: Environment, roots: ModuleRoots) -> None:
        self.frames = frames
        self.within = OUTSIDE
        self.arguments: Mapping[str, str] = {}
        self._labels: Labels = ()
        self._labelled = 0
        self._environment = environment
        self._names = roots.names()

    def enter(self, module: nn.Module) -> Within:
        """Say that a module's `forward` runs from here on; one without a name is not told from what calls it. Gives
        what was there before, to be put back."""
        before = self.within
        original = self._environment.original(module)
        entry = self._environment.entry(module)
        label = entry.name if entry is not None else None
        self.within = self._names.of(original, label, self.arguments) or before
        return before

    def open_label(self, name: str) -> None:
        """Nodes are in the user's `record_function(name)` from here on."""
        self._labelled += 1
        self._labels = (*self._labels, (self._labelled, name))

    def close_label(self, name: str) -> None:
        """They are in the innermost one of that name no longer, nor in those within it."""
        found = [at for at, (_, open_name) in enumerate(self._labels) if open_name == name]
        self._labels = self._labels[: found[-1]] if found else self._labels

    def location(self) -> Location:
        """The innermost line of the user's, or of all where none is his; with the module."""
        if not self.frames:
            return _UNKNOWN
        frame, within = self.frames[-1], self.within
        if frame.shown is not None and frame.seen_at == frame.ip and frame.within is within:
            return frame.shown
        line = frame.location
        frame.seen_at = frame.ip
        if frame.seen is line and frame.within is within and frame.shown is not None:
            return frame.shown
        shown = line if frame.decoded.is_users else self._above(len(self.frames) - 1).users or line
        if within.text:
            shown = Location(shown.file, shown.line, shown.function, within.text)
        frame.seen, frame.within, frame.shown, frame.place = line, within, shown, None
        return shown

    def line(self) -> Location | None:
        """As `location`; None where nothing runs."""
        return self.location() if self.frames else None

    def place(self) -> Place:
        """What a node that is made now says of where it comes from."""
        if not self.frames:
            return NOWHERE
        shown = self.location()
        frame, within = self.frames[-1], self.within
        known = frame.place
        if known is None or known.origin is None or known.origin.labels is not self._labels:
            stack = (*self._above(len(self.frames) - 1).stack, frame.location)
            known = frame.place = Place(shown, Origin(within.path, within.kind, stack, self._labels))
        return known

    def _above(self, number: int) -> Above:
        """The callers of a frame."""
        frame = self.frames[number]
        if frame.above is None:
            if number == 0:
                frame.above = _ROOT
            else:
                caller, outer = self.frames[number - 1], self._above(number - 1)
                line = caller.location
                users = line if caller.decoded.is_users else outer.users
                frame.above = Above((*outer.stack, line), users)
        return frame.above
