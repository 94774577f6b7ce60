"""Bound tensors and what is computed from them alone, for parts whose backends leave that to the framework."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor, fx

from lampwork.graph.interpret import run_graph
from lampwork.lasting import lasting
from lampwork.locks import new_lock
from lampwork.records import record
from lampwork.runtime import Executable
from lampwork.runtime.program import Program, Value


@record
class State:
    """`values`: the bound tensors, then the constants computed from them. `generation` grows when a weight that they
    depend on has changed."""

    generation: int
    values: tuple[Tensor, ...]


class Weights:
    """The bound tensors of a region, and its constants as they now are. Safe to use from several threads.

    Args:
        bound: the bound tensors.
        graph: from all of `bound` to the constants; None if there are none.
        watched: numbers of those whose change makes a new generation.
    """

    __slots__ = ("_bound", "_graph", "_lock", "_state", "_watch")

    def __init__(
        self, bound: Sequence[Tensor], graph: fx.Graph | None = None, watched: Collection[int] = ()
    ) -> None:
        self._bound = tuple(bound)
        self._graph = graph
        self._lock = new_lock()
        self._watch = _watch([bound[number] for number in sorted(watched)]) if watched else None
        self._state = self._compute(self._generation())

    def current(self) -> State:
        """What holds for a call that starts now."""
        if self._watch is None:
            return self._state
        generation = self._generation()
        state = self._state
        if state.generation == generation:
            return state
        with self._lock:
            if self._state.generation != generation:
                self._state = self._compute(generation)
            return self._state

    def _generation(self) -> int:
        if self._watch is None:
            return 0
        self._watch.run(())
        return self._watch.stats["constant_refreshes"]

    def _compute(self, generation: int) -> State:
        if self._graph is None:
            return State(generation, self._bound)
        with lasting():
            constants = run_graph(self._graph, self._bound)
        return State(generation, (*self._bound, *constants))


def _watch(tensors: Sequence[Tensor]) -> Executable:
    """A program that does nothing, with constants that are nothing but `tensors`: the runtime looks at them before
    each run, and counts in `stats` how often it found one changed."""
    numbers = tuple(range(len(tensors)))
    constants = Program(
        tuple(Value("input", position=i) for i in numbers), (), numbers, len(tensors), 0, arena_bytes=0
    )
    values = tuple(Value("bound", position=i) for i in numbers)
    return Executable(Program(values, (), (), 0, len(tensors), 0, constants), tuple(tensors))
