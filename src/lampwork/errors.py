"""Every error Lampwork raises: one hierarchy, each with a stable code, the user's line, the cause and the fix. And its
one kind of warning."""

from __future__ import annotations

import os
import sys
import warnings

from lampwork.records import record


@record
class Location:
    """A line of the user's program.

    `module`: the module whose `forward` ran there, as people read it: `encoder.layer.3 (Linear)`; "" where that is what
    was compiled, or there is none.
    """

    file: str
    line: int
    function: str = ""
    module: str = ""

    @property
    def line_text(self) -> str:
        """Without the function, as guards show it."""
        where = f"{self.file}:{self.line}"
        return f"{where}, {self.module}" if self.module else where

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        if self.function:
            where += f" in {self.function}"
        return f"{where}, {self.module}" if self.module else where


def text_of(error: BaseException) -> str:
    """Name and message of an exception of somebody else, whose `__str__` may raise in turn."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  (the boundary to code of others)
        return type(error).__name__


class LampworkWarning(UserWarning):
    """Something was left out that does not stop the program: code ran eager that could have been compiled, or a
    variable of the environment is wrong. The text gives the reason."""


_HERE = os.path.dirname(__file__) + os.sep


def warn(text: str) -> None:
    """Warn at the user's line: that of the call that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, LampworkWarning, stacklevel=level)


class LampworkError(Exception):
    """Base of all errors. `code` is stable: tests, docs and searches may rely on it.

    Args:
        cause: what happened, in one sentence.
        fix: what the user can do about it, in one sentence; "" if nothing can be done.
        location: the user's line, if it is known.
        code: a more specific code than the class's, such as that of a graph break.
    """

    code = "LW000"

    def __init__(
        self, cause: str, *, fix: str = "", location: Location | None = None, code: str | None = None
    ) -> None:
        if code is not None:
            self.code = code
        self.cause = cause
        self.fix = fix
        self.location = location
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"[{self.code}] {self.cause}"
        if self.location is not None:
            text += f"\n  at {self.location}"
        if self.fix:
            text += f"\n  fix: {self.fix}"
        return text


class OptionError(LampworkError):
    """An unknown option, or an invalid value for an option."""

    code = "LW001"


class CaptureError(LampworkError):
    """A region could not be captured. Without `strict` or `fullgraph` this becomes a record and an eager run."""

    code = "LW100"


class GraphBreakError(CaptureError):
    """A graph break under `fullgraph=True`."""

    code = "LW101"


class RecompileError(LampworkError):
    """A call needs a version that has not been compiled, and must not be: under `set_stance("fail_on_recompile")`, with
    the option `error_on_recompile`, or beyond the recompile limit of a function compiled with `fullgraph=True`."""

    code = "LW151"


class DataDependentError(CaptureError):
    """The program needs the data of a tensor, which exists only at run time (item, bool, nonzero, numpy, ...)."""

    code = "LW120"


class UnsupportedOpError(CaptureError):
    """An operation has no functional form to record (resize_, set_, aliased writes, ...)."""

    code = "LW121"


class InvalidGraphError(LampworkError):
    """A graph broke the contract of `graph.verify`: a bug in the recorder or in a pass."""

    code = "LW200"


class PassError(LampworkError):
    """A pass or a rewrite failed or produced an invalid graph."""

    code = "LW300"


class PluginPassError(PassError):
    """A pass that a user registered raised or left an invalid graph. The graph has been restored."""

    code = "LW301"


class PassTimeoutError(PassError):
    """A pass that a user registered did not finish in time (option `pass_timeout`)."""

    code = "LW302"


class NumericPassError(PassError):
    """A pass changed results beyond tolerance, under verify="numeric". The graph has been restored."""

    code = "LW303"


class RewriteError(PassError):
    """A rewrite failed: its check or replacement raised, its replacement has a different shape or dtype from what it
    replaces, or rewrites do not come to an end (`endless`). `rewrites` names the rewrites. `undone`: the graph is as it
    was before them; otherwise it is valid, with some of their changes in it."""

    code = "LW310"

    def __init__(
        self,
        cause: str,
        *,
        rewrites: tuple[str, ...] = (),
        undone: bool = True,
        endless: bool = False,
        fix: str = "",
        location: Location | None = None,
    ) -> None:
        self.rewrites = rewrites
        self.undone = undone
        self.endless = endless
        super().__init__(cause, fix=fix, location=location)


class NumericError(RewriteError):
    """A rewrite would change results beyond tolerance, under verify="numeric"."""

    code = "LW311"


class BisectError(LampworkError):
    """`lampwork bisect` has nothing to find: the program succeeds, fails without rewrites too, or differs from run to
    run."""

    code = "LW330"


class ReportError(LampworkError):
    """A report could not be written, or its page is not installed."""

    code = "LW341"


class ReportReadError(LampworkError):
    """A file is no report of Lampwork, is damaged, or has another format."""

    code = "LW342"


class ExportError(LampworkError):
    """What was compiled cannot be written in the format, or to the path, that was asked for."""

    code = "LW343"


class StudyError(LampworkError):
    """A file is no result of `lampwork study`, is damaged, has another schema, or could not be written."""

    code = "LW344"


class CacheError(LampworkError):
    """There is no cache on disk to look at, or no such key in it; or an archive of it could not be read or written."""

    code = "LW345"


class SerialError(LampworkError):
    """A compiled program or a graph in serial form is damaged, or what was to be written has no such form."""

    code = "LW350"


class BackendError(LampworkError):
    """A backend failed to compile a subgraph."""

    code = "LW400"


class LoweringError(BackendError):
    """An ATen node could not be expressed in the loop language."""

    code = "LW401"


class InvalidLoopsError(BackendError):
    """Loop code broke the contract of `loops.verify`: a bug in lowering, fusion or scheduling."""

    code = "LW402"


class CodegenError(BackendError):
    """Machine code could not be generated from valid loop code."""

    code = "LW403"


class BackendCompileError(BackendError):
    """A backend raised while it compiled a part of a graph, or returned something that cannot be called."""

    code = "LW410"


class BackendTimeoutError(BackendError):
    """A backend did not finish compiling a part of a graph in time (option `backend_timeout`)."""

    code = "LW411"


class BackendResultError(BackendError):
    """Code that a backend compiled returned the wrong number of outputs, or outputs of the wrong shape or dtype."""

    code = "LW412"


class BackendWriteError(BackendError):
    """Code that a backend compiled wrote to its inputs or changed torch's settings, or a backend wrote to weights that
    it compiled in."""

    code = "LW413"


class BackendRunError(BackendError):
    """Code that a backend compiled raised on a call that succeeds in eager PyTorch."""

    code = "LW414"


class BackendAnswerError(BackendError):
    """A backend's `supports`, `clusters` or `cost` raised, or returned an invalid answer."""

    code = "LW415"


class DriverError(BackendError):
    """The driver of a card is missing or too old, finds no card, or does not load a kernel."""

    code = "LW420"


class GraphCaptureError(BackendError):
    """A program could not be captured as a CUDA graph. It runs without; the log's topic `program` says so."""

    code = "LW421"


class RuntimeFailure(LampworkError):
    """A compiled program failed at run time where eager PyTorch would not have failed."""

    code = "LW500"


class MinifyError(LampworkError):
    """`lampwork minify` has nothing to reduce: nothing fails, or not each time, or it cannot be tried."""

    code = "LW331"


class ProfileError(LampworkError):
    """A profile was asked for what it does not have, or could not begin."""

    code = "LW340"
