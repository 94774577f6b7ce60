"""Who is told of what is compiled, as it is: nobody, unless something listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from lampwork.capture.model.region import Record
    from lampwork.compiled.entries import Entry
    from lampwork.compiled.function import Function
    from lampwork.compiled.stages import Compilation, Stages


class Listener(Protocol):
    """Is called in the thread that compiles."""

    def made(self, function: Function, entry: Entry) -> None:
        """A version was made."""
        ...

    def refused(self, function: Function, record: Record) -> None:
        """A call runs eager."""
        ...

    def half(self, stages: Stages, name: str, made: Compilation) -> None:
        """The forward or backward of a version was compiled: for the one in the making, or later."""
        ...


# Of the whole process, as what they write is.
listeners: list[Listener] = []
