"""The callable around a runtime's session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor, fx

from lampwork import pristine
from lampwork.backends.onnx.convert import Converted
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.locks import new_lock

Session = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Takes row-major tensors, one for each input of a model, and gives one for each output."""


@dataclass(slots=True)
class Part:
    """A converted graph that runs. Called with the graph's inputs; gives its outputs.

    `open_session(threads)` makes a session that computes with so many threads: one is made for each number that
    `torch.get_num_threads()` has been, when first needed. Safe to call from several threads.
    """

    converted: Converted
    graph: fx.Graph
    bound: tuple[Tensor, ...]
    open_session: Callable[[int], Session]
    sessions: dict[int, Session] = field(default_factory=dict[int, Session])
    lock: threading.RLock = field(default_factory=new_lock)

    @staticmethod
    def of(
        converted: Converted, graph: fx.Graph, bound: Sequence[Tensor], open_session: Callable[[int], Session]
    ) -> Part:
        """The first session is opened at once, so that a model that does not compile fails now."""
        part = Part(converted, copy_graph(graph), tuple(bound), open_session)
        if converted.outputs:
            part.session(pristine.get_num_threads())
        return part

    def session(self, threads: int) -> Session:
        found = self.sessions.get(threads)
        if found is None:
            with self.lock:
                found = self.sessions.get(threads)
                if found is None:
                    found = self.sessions[threads] = self.open_session(threads)
        return found

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        converted = self.converted
        roots: Sequence[Tensor] = ()
        for number in converted.narrow:
            if not pristine.equal(inputs[number].int(), inputs[number]):
                return run_graph(self.graph, (*inputs, *self.bound))
        if converted.outputs:
            given = [inputs[number] for number in converted.inputs]
            roots = self.session(pristine.get_num_threads())([_row_major(tensor) for tensor in given])
        if converted.checks:
            checks, roots = roots[-converted.checks :], roots[: -converted.checks]
            if not all(map(bool, checks)):
                # An index out of range: eager raises what is due.
                return run_graph(self.graph, (*inputs, *self.bound))
        if converted.boundary.plain:
            return roots
        return converted.boundary.results(inputs, roots)


def _row_major(tensor: Tensor) -> Tensor:
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.contiguous()
