"""`Observer`: told of each stage of a compilation, in order, as it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import fx

from lampwork.records import record
from lampwork.standard import functools

if TYPE_CHECKING:
    from lampwork.capture.model.region import Region
    from lampwork.differentiation.split import Split
    from lampwork.loops.fusion.group import Decision
    from lampwork.partitioning.parts import Part
    from lampwork.plugins.context import BackendPasses, PassContext
    from lampwork.runtime.program import CallKernel, Program
    from lampwork.transforms.pipeline import PassRecord


@record(eq=False)
class Details:
    """How a part of a graph was compiled.

    Attributes:
        names: buffers by name -> the number of the program's value.
        decisions: the steps of fusion, taken or not.
        loops, llvm: the texts of a kernel; "" where there is none, as templates have no loops.
        assembly: of a text that `llvm` gives.
    """

    names: Mapping[str, int]
    decisions: Sequence[Decision]
    loops: Callable[[CallKernel], str]
    llvm: Callable[[CallKernel], str]
    assembly: Callable[[str], str]


def _nothing() -> None:
    """The graph is there."""


class Inside:
    """What a part of a graph was compiled to, to look into; its `Details` too, which are made when somebody asks.

    Attributes:
        program: of a graph with symbols, the one for their hints.
    """

    def __init__(
        self,
        graph: fx.Graph,
        program: Program,
        details: Callable[[], Details],
        ready: Callable[[], None] = _nothing,
    ) -> None:
        """`ready`: is called before anybody looks at the graph."""
        self._graph = graph
        self.program = program
        self._make_details = details
        self._ready = ready

    @property
    def graph(self) -> fx.Graph:
        """The part."""
        self._ready()
        return self._graph

    @functools.cached_property
    def _details(self) -> Details:
        return self._make_details()

    @property
    def names(self) -> Mapping[str, int]:
        return self._details.names

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._details.decisions

    def loops(self, call: CallKernel) -> str:
        return self._details.loops(call)

    def llvm(self, call: CallKernel) -> str:
        return self._details.llvm(call)

    def assembly(self, text: str) -> str:
        return self._details.assembly(text)


class Observer:
    """Every method does nothing; an observer overrides those of the stages that it looks at. What it is given is the
    compilation's own: it is read, and not changed."""

    __slots__ = ()
    looks: ClassVar[bool] = True
    """Whether it wants to be told what `compiled` tells, which takes a while to find out."""

    @property
    def title(self) -> str:
        """The name of what is compiled; "" if it has none."""
        return ""

    def captured(self, fn: Callable[..., Any], region: Region) -> None:
        """A call of `fn` became a region."""

    def recorded(self, graph: fx.Graph) -> None:
        """The region's graph as it was recorded. Nobody changes it."""

    def transforming(self, graph: fx.Graph, context: Callable[[], PassContext]) -> None:
        """The graph that the passes are given, and what makes their context, to run them once more."""

    def skipped(self, run: Callable[[], None], calls: int) -> None:
        """The passes need not run over the graph, as what they come to was kept: a graph of so many calls. `run` lets
        them run all the same, once, and tells what became of it (`transformed`, `partitioned`)."""
        run()

    def transformed(
        self, graph: fx.Graph, records: Sequence[PassRecord], backend_passes: BackendPasses
    ) -> None:
        """The graph after all passes, what each of them did, and which of them backends brought."""

    def partitioned(self, parts: Sequence[Part]) -> None:
        """Who takes which part of the graph."""

    def compiled(
        self, texts: Mapping[str, Callable[[], str]], counts: Mapping[str, int], seconds: Mapping[str, float]
    ) -> None:
        """What a backend made of its part.

        Args:
            texts: functions that make the texts of its stages, of those named in compiled/stages.py.
            counts: how much of what it made.
            seconds: how long its steps took.
        """

    def built(self, inside: Inside) -> None:
        """What the native backend made of its part."""

    def differentiated(self, halves: Split) -> None:
        """The region is trained: its joint graph was divided. Comes after the end, with the call after a backward."""

    def half(self, name: str) -> Observer:
        """Who is told of the compilation of one half of a trained region, "forward" or "backward"."""
        del name
        return NOBODY

    def finished(self) -> None:
        """The compilation has come to its end."""


class _Nobody(Observer):
    __slots__ = ()
    looks = False

    def skipped(self, run: Callable[[], None], calls: int) -> None:
        """Nobody wants them to run."""


NOBODY: Observer = _Nobody()
"""For a compilation that nobody looks at."""
