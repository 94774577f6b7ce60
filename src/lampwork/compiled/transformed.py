"""The middle of the pipeline: a graph goes through the passes and is divided among backends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import fx

from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.backends.observer import Observer
from lampwork.backends.protocol import Backend, CompileOptions
from lampwork.compiled.function import Function
from lampwork.config import Config, using_config
from lampwork.graph.spec import TensorSpec
from lampwork.locks import new_lock
from lampwork.partitioning import Part, partition
from lampwork.partitioning.faults import raise_fault
from lampwork.partitioning.foreign import pass_context
from lampwork.partitioning.shortcut import Shortcut, keep_nothing, results_of, shortcut
from lampwork.plugins.context import PassContext
from lampwork.runtime.program import Program
from lampwork.standard import functools
from lampwork.transforms.pipeline import run_passes


@dataclass(slots=True, eq=False)
class Transforming:
    """The passes run over a graph, in place, and the backends are asked which part of it they take. It is done once: at
    once, or, where the program that it comes to was kept, when somebody looks.

        passes = Transforming.of(graph, function, backends, observer, mutations)
        program = passes.found()            and, if it is taken, passes.skip()
        ...
        parts = passes.run()                and, once one program was made of all of it, passes.keep()
    """

    graph: fx.Graph
    config: Config
    backends: Sequence[Backend]
    observer: Observer
    ctx: PassContext
    _report: Callable[..., None]
    _way: Shortcut | None
    keep: Callable[[], None] = keep_nothing
    _results: Sequence[TensorSpec] | None = None
    _parts: Sequence[Part] | None = None
    _lock: threading.RLock = field(default_factory=new_lock)

    @staticmethod
    def of(
        graph: fx.Graph,
        function: Function,
        backends: Sequence[Backend],
        observer: Observer,
        mutations: Sequence[tuple[int, int]],
    ) -> Transforming:
        """`mutations`: as those of `CompileOptions`, which what is made of the graph is compiled with."""
        ctx = pass_context(function.config, backends)
        observer.transforming(graph, functools.partial(pass_context, function.config, tuple(backends)))
        options = CompileOptions(function.config, tuple(mutations), observer)
        way = shortcut(graph, ctx, backends, options)
        return Transforming(graph, function.config, backends, observer, ctx, function.note_fault, way)

    def found(self) -> Program | SymbolicProgram | None:
        """The program that it comes to, from the cache; None if it is not there."""
        found = None if self._way is None else self._way.found(self.later)
        if found is None:
            return None
        self._results = found.results
        return found.program

    @property
    def results(self) -> Sequence[TensorSpec]:
        """The specs of what the graph returns, as the passes leave them: once they have run, or what they come to was
        found."""
        return results_of(self.graph) if self._results is None else self._results

    def run(self) -> Sequence[Part]:
        """The parts."""
        with self._lock:
            parts = self._done()
            if self._way is not None and not self.ctx.faults:
                self.keep = self._way.lead(parts)
            return parts

    def later(self) -> None:
        """Do it for somebody who looks, as it would have been done: nothing of it counts. No function is to be found
        from here, as whoever looks may outlive it."""
        with self._lock, using_config(self.config):
            self.ctx.counting = False
            self._done()

    def skip(self) -> None:
        """It is not done, unless somebody looks."""
        self._report = raise_fault

    def _done(self) -> Sequence[Part]:
        if self._parts is None:
            self._parts = self._run()
        return self._parts

    def _run(self) -> Sequence[Part]:
        records = run_passes(self.graph, self.config, ctx=self.ctx)
        for fault in self.ctx.faults:
            self._report(fault, "the graph as it was before")
        self.observer.transformed(self.graph, records, self.ctx.backend_passes)
        parts = partition(self.graph, self.backends, self._report)
        self.observer.partitioned(parts)
        self.ctx.settle()
        return parts
