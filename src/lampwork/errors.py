"""Every error Lampwork raises: one hierarchy, each with a stable code, the user's line, the cause and the fix."""

from __future__ import annotations

from lampwork.records import record


@record
class Location:
    """A line of the user's program."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where} in {self.function}" if self.function else where


class LampworkError(Exception):
    """Base of all errors. `code` is stable: tests, docs and searches may rely on it.

    Args:
        cause: what happened, in one sentence.
        fix: what the user can do about it, in one sentence ("" if nothing).
        location: the user's line, where one is known.
        code: a more precise code than the class's (a graph break's own).
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
    """An unknown option, or a value an option does not take."""

    code = "LW001"


class CaptureError(LampworkError):
    """A region could not be captured. Without `strict` or `fullgraph` this becomes a record and an eager run."""

    code = "LW100"


class GraphBreakError(CaptureError):
    """A graph break under `fullgraph=True`."""

    code = "LW101"


class RecompileError(LampworkError):
    """A call needs a version that is not compiled yet, under `set_stance("fail_on_recompile")`."""

    code = "LW151"


class DataDependentError(CaptureError):
    """The program asked for the data of a tensor that exists only at run time (item, bool, nonzero, numpy, ...)."""

    code = "LW120"


class UnsupportedOpError(CaptureError):
    """An operation has no functional form that the recorder could record (resize_, set_, aliased writes, ...)."""

    code = "LW121"


class InvalidGraphError(LampworkError):
    """A graph broke the contract of `graph.verify`: a bug in the recorder or in a pass."""

    code = "LW200"


class PassError(LampworkError):
    """A pass or a rewrite failed or produced an invalid graph."""

    code = "LW300"


class PluginPassError(PassError):
    """A pass that a user registered raised, or left an invalid graph. The graph is as it was before it."""

    code = "LW301"


class PassTimeoutError(PassError):
    """A pass that a user registered did not end in time (option `pass_timeout`)."""

    code = "LW302"


class NumericPassError(PassError):
    """A pass changed results beyond tolerance, under verify="numeric". The graph is as it was before it."""

    code = "LW303"


class RewriteError(PassError):
    """A rewrite failed: its check or replacement raised, its replacement is of another type than what it replaces, or
    rewrites undo each other. `rewrites` names them."""

    code = "LW310"

    def __init__(
        self, cause: str, *, rewrites: tuple[str, ...] = (), fix: str = "", location: Location | None = None
    ) -> None:
        self.rewrites = rewrites
        super().__init__(cause, fix=fix, location=location)


class NumericError(RewriteError):
    """A rewrite would change results beyond tolerance, under verify="numeric"."""

    code = "LW311"


class BisectError(LampworkError):
    """`lampwork bisect` has nothing to find: the program succeeds, fails without rewrites too, or differs from run to
    run."""

    code = "LW330"


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
    """A backend raised while it compiled a part of a graph, or returned what cannot be called."""

    code = "LW410"


class BackendTimeoutError(BackendError):
    """A backend did not finish compiling a part of a graph in time (option `backend_timeout`)."""

    code = "LW411"


class BackendResultError(BackendError):
    """What a backend compiled returned the wrong number of outputs, or outputs of another shape or dtype."""

    code = "LW412"


class BackendWriteError(BackendError):
    """What a backend compiled wrote to its inputs."""

    code = "LW413"


class BackendRunError(BackendError):
    """What a backend compiled raised on a call that eager PyTorch serves."""

    code = "LW414"


class BackendAnswerError(BackendError):
    """A backend's `supports`, `clusters` or `cost` raised, or answered what it cannot."""

    code = "LW415"


class RuntimeFailure(LampworkError):
    """A compiled program failed while running in a way eager PyTorch would not have."""

    code = "LW500"
