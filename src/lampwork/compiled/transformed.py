"""The middle of the pipeline: a graph goes through the passes and is divided among backends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import fx

from lampwork.backends.observer import Observer
from lampwork.backends.protocol import Backend
from lampwork.compiled.function import Function
from lampwork.config import Config, using_config
from lampwork.locks import new_lock
from lampwork.partitioning import Part, partition
from lampwork.partitioning.faults import raise_fault
from lampwork.partitioning.foreign import pass_context
from lampwork.plugins.context import PassContext
from lampwork.standard import functools
from lampwork.transforms.pipeline import run_passes


def transform(
    graph: fx.Graph, function: Function, backends: Sequence[Backend], observer: Observer
) -> Sequence[Part]:
    """Run the passes over `graph`, in place, and ask the backends which part of it they take."""
    return Transforming.of(graph, function, backends, observer).run()


@dataclass(slots=True, eq=False)
class Transforming:
    """What `transform` does, ready to be done: at once, or when somebody looks. It is done once."""

    graph: fx.Graph
    config: Config
    backends: Sequence[Backend]
    observer: Observer
    ctx: PassContext
    _report: Callable[..., None]
    _parts: Sequence[Part] | None = None
    _lock: threading.RLock = field(default_factory=new_lock)

    @staticmethod
    def of(
        graph: fx.Graph, function: Function, backends: Sequence[Backend], observer: Observer
    ) -> Transforming:
        ctx = pass_context(function.config, backends)
        observer.transforming(graph, functools.partial(pass_context, function.config, tuple(backends)))
        return Transforming(graph, function.config, backends, observer, ctx, function.note_fault)

    def run(self) -> Sequence[Part]:
        """The parts."""
        with self._lock:
            if self._parts is None:
                self._parts = self._run()
            return self._parts

    def later(self) -> None:
        """Do it for somebody who looks, as it would have been done: nothing of it counts. No function is to be found
        from here, as whoever looks may outlive it."""
        with self._lock, using_config(self.config):
            self.ctx.counting = False
            self.run()

    def skip(self) -> None:
        """It is not done, unless somebody looks."""
        self._report = raise_fault

    def _run(self) -> Sequence[Part]:
        records = run_passes(self.graph, self.config, ctx=self.ctx)
        for fault in self.ctx.faults:
            self._report(fault, "the graph as it was before")
        self.observer.transformed(self.graph, records, self.ctx.backend_passes)
        parts = partition(self.graph, self.backends, self._report)
        self.observer.partitioned(parts)
        self.ctx.settle()
        return parts
