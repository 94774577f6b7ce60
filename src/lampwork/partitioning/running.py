"""Running one part: what its backend compiled, held to the graph; after a fault, what the next backend makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import Tensor, fx

from lampwork.backends.eager import EagerBackend
from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.protocol import Backend, CompileOptions, Traits
from lampwork.errors import BackendError, BackendRunError, BackendWriteError, text_of
from lampwork.graph.interpret import run_graph
from lampwork.locks import new_lock
from lampwork.partitioning.checks import Expected, checked_run, fit
from lampwork.partitioning.compiling import Made, again, compile_graph, described, place_of
from lampwork.partitioning.faults import Report
from lampwork.partitioning.unwritten import versions_of
from lampwork.partitioning.weights import State
from lampwork.records import record
from lampwork.runtime import Executable
from lampwork.runtime.program import Program

Call = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@record
class Source:
    """A part to run. `graph`: of its own, inputs before bound placeholders; it shares no node with others.
    `inputs`, `bound`: the numbers of the values that its placeholders stand for. `outputs`: of those it makes."""

    graph: fx.Graph
    inputs: tuple[int, ...]
    bound: tuple[int, ...]
    outputs: tuple[int, ...]


@record
class _Built:
    """`numbers`: the values that `call` takes. `generation`: the one it is right for, -1: for all. `checked`: its
    results are to be held to the graph."""

    backend: Backend
    made: Made
    call: Call
    numbers: tuple[int, ...]
    generation: int
    checked: bool


class Runner:
    """Runs one part. Safe to use from several threads.

    Args:
        source: the part.
        backends: those that may compile it, in order; eager PyTorch comes last by itself.
        options: for compiling; `bound` is filled in.
        state: the bound tensors and constants now.
        n_inputs: how many values come before those of `state`.
        report: is told of faults.
        unsaid: what is to be raised on the first call, whoever runs it: weights were destroyed by compiling.

    Raises:
        BackendError: as `report` does.
    """

    __slots__ = (
        "_backends",
        "_built",
        "_expected",
        "_lock",
        "_n_inputs",
        "_options",
        "_report",
        "_unsaid",
        "source",
    )

    def __init__(
        self,
        source: Source,
        backends: Sequence[Backend],
        options: CompileOptions,
        state: State,
        n_inputs: int,
        report: Report,
        unsaid: BackendError | None = None,
    ) -> None:
        self.source = source
        self._backends = [*backends, EagerBackend()]
        self._options = options
        self._n_inputs = n_inputs
        self._report = report
        self._unsaid = unsaid
        self._lock = new_lock()
        self._expected = Expected.of(source.graph)
        self._built = self._build(state)

    @property
    def backend(self) -> Backend:
        """Who runs it now."""
        return self._built.backend

    def __call__(self, values: Sequence[Any], state: State) -> Sequence[Tensor]:
        """The part's outputs for the chain's `values`.

        Raises:
            BackendError: what the backend compiled wrote to its inputs after it had not on the first calls, or it
                wrote to weights while it compiled them; or what `report` raises.
        """
        built = self._built
        if built.made.fault is not None or (built.generation >= 0 and built.generation != state.generation):
            built = self._renew(state)
        if self._unsaid is not None:
            self._say()
        tensors = [values[i] for i in built.numbers]
        if not built.checked:
            return built.call(tensors)
        made = built.made
        if made.checks > 0:
            return self._checked(built, tensors, values, state)
        before = versions_of(tensors)
        try:
            outputs = fit(built.call(tensors), self._expected, made.copies, built.backend.name)
        except Exception as error:  # noqa: BLE001  (foreign code may raise anything)
            return self._failed(built, error, tensors, values, state)
        if before is not None and before != versions_of(tensors):
            raise self._fatal(built, state)
        return outputs

    def _checked(
        self, built: _Built, tensors: Sequence[Tensor], values: Sequence[Any], state: State
    ) -> Sequence[Tensor]:
        with self._lock:
            try:
                count, name = len(self.source.inputs), built.backend.name
                return checked_run(built.made, built.call, tensors, self._expected, count, name)
            except Exception as error:  # noqa: BLE001  (foreign code may raise anything)
                return self._failed(built, error, tensors, values, state)

    def _failed(
        self,
        built: _Built,
        error: Exception,
        tensors: Sequence[Tensor],
        values: Sequence[Any],
        state: State,
    ) -> Sequence[Tensor]:
        """The outputs from elsewhere, if the fault is the backend's; the exception, if eager PyTorch raises too."""
        numbers = (*self.source.inputs, *self.source.bound)
        # Whoever comes next, the question who is at fault is for eager PyTorch to answer.
        outputs = run_graph(self.source.graph, [values[i] for i in numbers])
        if not isinstance(error, BackendError):
            error = BackendRunError(
                f"backend {built.backend.name} failed on a call: {text_of(error)}",
                fix=f"leave {built.backend.name} out of the backends, or report this to its author",
            )
        self._drop(built, self._placed(error), state)
        return outputs

    def _fatal(self, built: _Built, state: State) -> BackendError:
        """A tensor of the caller's has been written to: nothing can make that good. Later calls run the next backend's
        code."""
        error = self._placed(
            BackendWriteError(
                f"backend {built.backend.name} wrote to its inputs, which it had not done on the first calls; "
                "they cannot be restored",
                fix=f"leave {built.backend.name} out of the backends, or have it copy what it writes to",
            )
        )
        with self._lock:
            built.made.fault = error
            if self._built is built:
                self._backends = [b for b in self._backends if b is not built.backend]
                self._built = self._build(state)
        self._report(error, "", calling=True)
        return error

    def _say(self) -> None:
        """Raise, once, what compiling did."""
        with self._lock:
            error, self._unsaid = self._unsaid, None
        if error is not None:
            self._report(error, "", calling=True)
            raise error

    def _placed(self, error: BackendError) -> BackendError:
        """The error with the nodes and the user's line."""
        cause = f"{error.cause}, running {described(self.source.graph)}"
        placed = type(error)(cause, fix=error.fix, location=place_of(self.source.graph), code=error.code)
        placed.__cause__ = error.__cause__ or error
        return placed

    def _drop(self, built: _Built, error: BackendError, state: State) -> None:
        """Never run this again."""
        with self._lock:
            built.made.fault = error
            if self._built is not built:
                return
            self._backends = [b for b in self._backends if b is not built.backend]
            self._report(error, self._next(), calling=True)
            self._built = self._build(state)

    def _next(self) -> str:
        return self._backends[0].name

    def _renew(self, state: State) -> _Built:
        """What holds for changed weights, or after a fault in another part or thread that shares the compiled code."""
        with self._lock:
            while (fault := self._built.made.fault) is not None:
                self._drop(self._built, again(fault, place_of(self.source.graph)), state)
            if self._built.generation not in (-1, state.generation):
                self._built = self._build(state, self._built.made)
            return self._built

    def _build(self, state: State, before: Made | None = None) -> _Built:
        """What the first of the backends that can compiles; `before` is what it compiled for other weights."""
        while True:
            backend = self._backends[0]
            traits = Traits.of(backend)
            bound = [state.values[i - self._n_inputs] for i in self.source.bound]
            try:
                if before is None or traits.bakes_weights:
                    before = compile_graph(backend, self.source.graph, self._options, bound)
                return self._linked(backend, traits, before, bound, state)
            except BackendWriteError as error:
                # A warning is not enough: it is raised on the next call.
                self._unsaid = error
                del self._backends[0]
                before = None
            except BackendError as error:
                if len(self._backends) == 1:
                    raise
                del self._backends[0]
                before = None
                self._report(error, self._next())

    def _linked(
        self, backend: Backend, traits: Traits, made: Made, bound: Sequence[Tensor], state: State
    ) -> _Built:
        compiled, inputs = made.compiled, self.source.inputs
        if isinstance(compiled, Program):
            # Its own runtime sees to changes in the bound tensors themselves, but constants are new tensors.
            run = Executable(compiled, tuple(bound)).run
            generation = -1 if traits.keeps_constants else state.generation
            return _Built(backend, made, run, inputs, generation, checked=False)
        if isinstance(compiled, SymbolicProgram):
            raise BackendError(
                f"backend {backend.name} made a program for all sizes of a graph without symbols"
            )
        function = cast("Callable[..., Any]", compiled)
        numbers = inputs if traits.bakes_weights else (*inputs, *self.source.bound)
        generation = state.generation if traits.bakes_weights else -1
        return _Built(
            backend, made, lambda tensors: function(*tensors), numbers, generation, not traits.trusted
        )
