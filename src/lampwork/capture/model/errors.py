"""How capture stops short: `Break` (undo to the last instruction of the root frame) and the errors of a whole frame."""

from __future__ import annotations

import types
from typing import Any

from lampwork.capture.model.codes import CODES
from lampwork.capture.model.region import Record
from lampwork.errors import CaptureError, Location
from lampwork.graph.shapes_common import ShapeError


class Break(BaseException):
    """A graph break, on its way to the root frame.

    Not an Exception, so that `except Exception` of the program being interpreted does not see it; the frame loop
    routes it past every handler. `depth`: how many frames were active.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        self.code = code
        self.detail = detail
        self.location: Location | None = None
        self.depth = 0
        super().__init__(code, detail)

    def at(self, location: Location, depth: int) -> None:
        """Note where it happened and how many frames deep, the first time."""
        if self.location is None:
            self.location, self.depth = location, depth

    @property
    def cause(self) -> str:
        return CODES[self.code].cause.format(detail=self.detail)

    def record(self) -> Record:
        where = self.location or Location("<unknown>", 0)
        fix = CODES[self.code].fix
        return Record(self.code, self.cause, fix, where.file, where.line, where.function, where.module)


class Earlier(Break):
    """A break before an instruction of the root frame that is past: its number is `step`."""

    def __init__(self, code: str, detail: str, step: int) -> None:
        self.step = step
        super().__init__(code, detail)


class TooLong(Earlier):
    """LW122: what comes after the last operator is left to Python, from this instruction of the root frame on."""

    def __init__(self, detail: str, step: int) -> None:
        super().__init__("LW122", detail, step)


class FrameRefused(CaptureError):
    """The whole frame is left to eager. `code` is the code of the record."""

    def __init__(self, code: str, detail: str = "", location: Location | None = None) -> None:
        self.code = code
        entry = CODES[code]
        super().__init__(entry.cause.format(detail=detail), fix=entry.fix, location=location)


class Unbuildable(FrameRefused):
    """LW134: a value that no recipe can make is still in use where the region ends. `born`: the instruction of the root
    frame that made it, so that a region that ends before it need not; None if that is not known. `stop`: the break that
    this would be."""

    def __init__(self, detail: str, born: int | None = None, stop: Break | None = None) -> None:
        self.born = born
        self.stop = stop or Break("LW138", detail)
        super().__init__("LW134", detail)


class ProgramRaised(CaptureError):
    """The user's program raised while it was captured. Run it in eager: that raises the genuine exception.

    `region`: one without a graph, with the guards under which it did. `made`: the exception is the region's own."""

    code = "LW119"

    def __init__(self, error: BaseException, location: Location | None = None) -> None:
        self.error: Any = error
        self.region: Any = None
        self.made = False
        super().__init__(f"the program raised {_described(error)}", location=location)


def forget_frames(error: BaseException) -> None:
    """Let go of the frames that an exception left: one that is kept, and is found in one of them, would keep all that
    the capture has read."""
    suppress = error.__suppress_context__
    error.__traceback__ = error.__cause__ = error.__context__ = None
    error.__suppress_context__ = suppress  # which to set a cause sets too
    if isinstance(error, ProgramRaised):
        if error.made:
            forget_frames(error.error)
        error.error = None


def _described(error: BaseException) -> str:
    """An exception as text, where making it runs no code of the program's and reads no tensor."""
    plain = all(type(arg) in (str, int, float, bool, type(None)) for arg in error.args)
    native = not isinstance(type(error).__str__, types.FunctionType)
    return f"{type(error).__name__}: {error}" if plain and native else type(error).__name__


def is_of_torch(error: BaseException) -> bool:
    """Whether torch raised this, or the rules that stand for its own checks: eager words it its own way."""
    if isinstance(error, ShapeError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return module == "lampwork.capture.calls.torch_calls" or module.startswith(("torch.", "lampwork.graph."))
