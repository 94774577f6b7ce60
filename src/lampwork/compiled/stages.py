"""`compiled.stages`: everything between the Python function and the machine code, printable."""

from __future__ import annotations

import dis
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, fx, nn

from lampwork import config, logs
from lampwork.backends.observer import Inside, Observer
from lampwork.capture.model.printing import format_guards
from lampwork.capture.model.region import Region
from lampwork.compiled.listening import listeners
from lampwork.differentiation.peak import estimated_peak
from lampwork.differentiation.split import Split
from lampwork.display import Block, Folded, Shown, Table
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.graph.printing import format_graph, to_python
from lampwork.partitioning import Part, format_partition
from lampwork.plugins.context import BackendPasses, PassContext
from lampwork.runtime.program import Program
from lampwork.runtime.steps import StepFacts
from lampwork.standard import functools
from lampwork.transforms.pipeline import PassRecord, format_records

ORDER = (
    "bytecode",
    "guards",
    "graph",
    "passes",
    "optimized",
    "partition",
    "definitions",
    "fusion",
    "kernels",
    "llvm",
    "assembly",
    "program",
    "tuning",
    "saved",
    "forward",
    "backward",
)

SAYS = {
    "bytecode": "the Python that was captured",
    "guards": "when this version serves a call",
    "graph": "the ATen graph as recorded",
    "passes": "what each pass changed",
    "optimized": "the graph after the passes",
    "partition": "which backend has which operators",
    "definitions": "each buffer, and what computes an element",
    "fusion": "what is computed together, and why not more",
    "kernels": "loop trees",
    "llvm": "code of kernels",
    "assembly": "machine code",
    "program": "steps and memory of a call",
    "tuning": "what was measured",
    "saved": "what forward keeps for backward",
    "forward": "the graph of forward",
    "backward": "the graph of backward",
}
"""What each stage is, in a few words."""

MOST_PROGRAMS = 64

TRAINED = ("saved tensors", "saved bytes", "operators computed again", "estimated peak bytes")
"""What is counted of a region that is trained."""


def _not_called() -> str:
    return "nothing is compiled yet; call the function once"


@dataclass(slots=True, repr=False)
class Stages(Shown, Observer):
    """The stages of one compiled version, as they were observed. Each is a text that is made on first access;
    `print(stages)` shows them all.

    `graph` is the recorded ATen graph; `run` executes it eagerly on the graph's inputs and bound tensors, in that
    order; `python` is its source as runnable Python.

    `why_none`: says why there are no stages, where nothing was compiled.
    `compilation`: what became of the graph, None if it was not compiled; `halves`: the same of the forward and the
    backward of a training step. `trained`: whether `compilation` is of the forward of one.
    """

    name: str = ""
    aten: fx.Graph | None = None
    backend_passes: BackendPasses = ()
    counts: dict[str, int] = field(default_factory=dict[str, int])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    makers: dict[str, Callable[[], str]] = field(default_factory=dict[str, Callable[[], str]])
    why_none: Callable[[], str] = _not_called
    compilation: Compilation | None = None
    halves: dict[str, list[Compilation]] = field(default_factory=dict[str, "list[Compilation]"])
    trained: bool = False
    _halved: tuple[fx.Graph, fx.Graph] | None = None
    _texts: dict[str, str] = field(default_factory=dict[str, str])

    # --- observing ----------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        return self.name

    def captured(self, fn: Callable[..., Any], region: Region) -> None:
        self._keep("bytecode", "bytecode", lambda: format_bytecode(fn))
        self._keep("guards", "guards", functools.partial(_guards_of, weakref.ref(region)))
        self.seconds["capture"] = region.stats["capture_seconds"]

    def recorded(self, graph: fx.Graph) -> None:
        self.aten = graph
        self._keep("graph", "graph", lambda: format_graph(graph))
        self.counts["ATen nodes"] = _calls(graph)

    def transforming(self, graph: fx.Graph, context: Callable[[], PassContext]) -> None:
        given = self.aten
        if self._halved is not None and self._halved[0] is graph:
            self.trained, given = True, self._halved[1]
        if given is not None:
            self.compilation = Compilation(given, _results(graph), context, graph)

    def skipped(self, run: Callable[[], None], calls: int) -> None:
        """The passes run when somebody looks at what they did."""
        if self.compilation is not None:
            self.compilation.later = run
        for stage in ("passes", "optimized", "partition"):
            self.makers[stage] = functools.partial(self._text_after, run, stage)
        self.counts["after passes"] = calls

    def _text_after(self, run: Callable[[], None], stage: str) -> str:
        run()  # makes another maker of the stage
        return self.makers[stage]()

    def transformed(
        self, graph: fx.Graph, records: Sequence[PassRecord], backend_passes: BackendPasses
    ) -> None:
        self.backend_passes = backend_passes
        if self.compilation is not None:
            self.compilation.transformed(records)
        self.makers["passes"] = lambda: format_records(records)
        self._keep("optimized", "graph", lambda: format_graph(graph))
        self.counts["after passes"] = _calls(graph)
        self.seconds["passes"] = sum(record.seconds for record in records)

    def partitioned(self, parts: Sequence[Part]) -> None:
        if self.compilation is not None:
            self.compilation.partitioned(parts)
        self._keep("partition", "partition", lambda: format_partition(parts))

    def compiled(
        self, texts: Mapping[str, Callable[[], str]], counts: Mapping[str, int], seconds: Mapping[str, float]
    ) -> None:
        unknown = texts.keys() - set(ORDER)
        if unknown:
            raise ValueError(
                f"{', '.join(sorted(unknown))}: no such stage; the stages are {', '.join(ORDER)}"
            )
        self.makers.update(texts)
        for stage in texts:
            self._texts.pop(stage, None)
        self.counts.update(counts)
        self.seconds.update(seconds)

    def built(self, inside: Inside) -> None:
        if self.compilation is not None:
            self.compilation.built(inside)

    def half(self, name: str) -> Observer:
        return _Half(name, self)

    def differentiated(self, halves: Split) -> None:
        self.halves.clear()  # those of the sizes before
        forward = copy_graph(halves.forward)  # passes work in place
        self._halved = halves.forward, forward
        backwards = [copy_graph(backward.graph) for backward in halves.backwards.values()]
        self._keep("saved", "graph", lambda: format_saved(halves))
        self._keep("forward", "graph", lambda: format_graph(forward))
        self._keep("backward", "graph", lambda: "\n\n".join(map(format_graph, backwards)))
        numbers = (len(halves.saved), halves.saved_bytes, len(halves.again), estimated_peak(halves))
        self.counts.update(zip(TRAINED, numbers, strict=True))

    def finished(self) -> None:
        """Prints what backends showed, where the log's topics are on, and dumps every stage if there is a folder."""
        for stage, topic in (("fusion", "loops"), ("kernels", "loops"), ("program", "program")):
            if logs.enabled(topic) and stage in self:
                logs.emit(topic, f"{self.name} {stage}\n{self.text(stage)}")
        if config.current().dump:
            for stage in self:
                logs.dump(self.name, ORDER.index(stage) + 1, stage, self.text(stage))

    def _keep(self, stage: str, topic: str, make: Callable[[], str]) -> None:
        """Keeps a stage, and prints it now if its log topic is on."""
        self.makers[stage] = make
        if logs.enabled(topic):
            logs.emit(topic, f"{self.name} {stage}\n{self.text(stage)}")

    # --- looking ------------------------------------------------------------------------------------------------------

    def text(self, stage: str) -> str:
        """The text of a stage.

        Raises:
            KeyError: nothing was compiled yet, or this version has no such stage; a region without tensor operations
                has no kernels, for instance.
        """
        if stage not in self.makers:
            raise KeyError(self._absent(stage))
        if stage not in self._texts:
            self._texts[stage] = self.makers[stage]()
        return self._texts[stage]

    def __iter__(self) -> Iterator[str]:
        return (stage for stage in ORDER if stage in self.makers)

    def __getattr__(self, name: str) -> str:
        if name in ORDER:
            try:
                return self.text(name)
            except KeyError as error:
                raise AttributeError(error.args[0]) from None
        # A property that raises an AttributeError ends here.
        raise AttributeError(self._absent("graph") if name == "python" else name)

    def __dir__(self) -> list[str]:
        return [*self, "run", "python", "text", "name", "aten"]

    @property
    def python(self) -> str:
        """The recorded ATen graph as Python source."""
        return to_python(self._graph())

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Execute the recorded ATen graph eagerly."""
        return run_graph(self._graph(), tensors)

    def steps(self, half: str = "") -> tuple[StepFacts, ...]:
        """What each kernel and ATen call of the version computes and moves: names of nodes of the stage "optimized",
        bytes, floating point operations. Of sizes that are open, for those of the first call.

        half: "forward" or "backward" of a region that is trained. `index` counts within each program of `made(half)`.

        Raises:
            KeyError: there is no such half.
        """
        return tuple(
            step for made in self.made(half) for program in made.programs for step in program.steps()
        )

    def made(self, half: str = "") -> Sequence[Compilation]:
        """What became of the graph, or of one half of a region that is trained.

        Raises:
            KeyError: there is no such half.
        """
        if not half:
            return () if self.compilation is None else (self.compilation,)
        if half not in self.halves:
            raise KeyError(f"no half {half!r}; there are {', '.join(map(repr, self.halves)) or 'none'}")
        return self.halves[half]

    def summary(self) -> str:
        """A summary of a few lines: what the graph was compiled to, and the seconds that each step took."""
        counts = ", ".join(f"{value} {name}" for name, value in self.counts.items())
        seconds = ", ".join(f"{name} {value:.3f} s" for name, value in self.seconds.items())
        return f"{self.name}: {counts}\ncompiled in {sum(self.seconds.values()):.2f} s: {seconds}"

    def _graph(self) -> fx.Graph:
        if self.aten is None:
            raise AttributeError(self._absent("graph"))
        return self.aten

    def _absent(self, stage: str) -> str:
        """Why there is no such stage."""
        if not self.makers:
            return f"no stage {stage!r}: {self.why_none()}"
        if self.aten is None and stage in ORDER:
            return (
                f"no stage {stage!r}: {self.name} does no tensor work, so it has no graph and no code; "
                f"there are {', '.join(self)}"
            )
        return f"no stage {stage!r}; there are {', '.join(self)}"

    def _brief(self) -> str:
        if not self.makers:
            return self.why_none()
        counts = ", ".join(f"{value} {name}" for name, value in self.counts.items() if value)
        return f"{self.name}: {counts or 'no tensor work'}"

    def _blocks(self) -> Iterable[Block]:
        """No texts but the graph's: those of code are long, and made when they are asked for."""
        if not self.makers:
            yield self.why_none()
            return
        yield self.summary()
        yield Table(("stage", "", "print"), tuple((s, SAYS[s], f"print(….stages.{s})") for s in self))
        if self.aten is not None:
            yield Folded("graph", self.text("graph"))

    def __str__(self) -> str:
        if not self.makers:
            return self.why_none()
        parts = [f"{self.name}: stages {', '.join(self)}"]
        parts += [f"\n==== {stage} ====\n{self.text(stage)}" for stage in self]
        return "\n".join(parts)


@dataclass(slots=True)
class Compilation:
    """What became of one graph.

    Attributes:
        recorded: the graph, as it was before the passes.
        results: the names of what it returned to them: what differentiating needs is appended.
        context: makes the context that they run in.
        inside: what the native backend made of its part.
        programs: what it made of all its parts. Where it makes another for other sizes, those that came first.
        later: lets the passes run, if they did not need to.
    """

    recorded: fx.Graph
    results: tuple[str, ...]
    context: Callable[[], PassContext]
    _graph: fx.Graph
    _records: Sequence[PassRecord] = ()
    _parts: Sequence[Part] = ()
    inside: Inside | None = None
    programs: list[Program] = field(default_factory=list["Program"])
    later: Callable[[], None] | None = None

    @property
    def graph(self) -> fx.Graph:
        """The graph after the passes."""
        self._settle()
        return self._graph

    @property
    def records(self) -> Sequence[PassRecord]:
        """What each pass did."""
        self._settle()
        return self._records

    @property
    def parts(self) -> Sequence[Part]:
        """Who takes what of the graph."""
        self._settle()
        return self._parts

    def _settle(self) -> None:
        if self.later is not None:
            self.later()

    def transformed(self, records: Sequence[PassRecord]) -> None:
        self._records = tuple(records)

    def partitioned(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self.later = None

    def built(self, inside: Inside) -> None:
        """Keeps so many programs at most: a function that is called with ever other sizes must not grow without end."""
        self.inside = inside
        if len(self.programs) < MOST_PROGRAMS:
            self.programs.append(inside.program)

    def given(self) -> fx.Graph:
        """A copy of the graph that the passes were given."""
        copy = copy_graph(self.recorded)
        nodes = {node.name: node for node in copy.nodes}
        output = next(iter(reversed(copy.nodes)))
        output.args = (tuple(nodes[name] for name in self.results),)
        return copy


def _results(graph: fx.Graph) -> tuple[str, ...]:
    output: Any = next(iter(reversed(graph.nodes)))
    return tuple(node.name for node in output.args[0])


@dataclass(slots=True)
class _Half(Observer):
    """Keeps what becomes of half a training step."""

    looks: ClassVar[bool] = False
    name: str
    stages: Stages
    made: Compilation | None = None

    def transforming(self, graph: fx.Graph, context: Callable[[], PassContext]) -> None:
        # Saved tensors were laid out since the halves were made.
        self.made = Compilation(copy_graph(graph), _results(graph), context, graph)
        self.stages.halves.setdefault(self.name, []).append(self.made)

    @property
    def title(self) -> str:
        return f"{self.stages.name} {self.name}"

    def skipped(self, run: Callable[[], None], calls: int) -> None:
        if self.made is not None:
            self.made.later = run

    def transformed(
        self, graph: fx.Graph, records: Sequence[PassRecord], backend_passes: BackendPasses
    ) -> None:
        if self.made is not None:
            self.made.transformed(records)

    def partitioned(self, parts: Sequence[Part]) -> None:
        if self.made is not None:
            self.made.partitioned(parts)

    def built(self, inside: Inside) -> None:
        if self.made is not None:
            self.made.built(inside)
            for listener in listeners:
                listener.half(self.stages, self.name, self.made)


def _calls(graph: fx.Graph) -> int:
    return sum(node.op == "call_function" for node in graph.nodes)


def _guards_of(found: weakref.ref[Region]) -> str:
    """Weakly: stages outlive their version, which holds what its guards look at."""
    region = found()
    return "the version is gone" if region is None else format_guards(region)


def format_saved(halves: Split) -> str:
    """What the forward of a trained region saves, largest first, and what its backward computes again."""
    largest = sorted(halves.saved.items(), key=lambda item: -item[1].nbytes)
    lines = [f"{spec.nbytes:>12} bytes  {name}: {spec}" for name, spec in largest]
    again = ", ".join(halves.again) or "nothing"
    head = [f"{halves.saved_bytes:>12} bytes in {len(lines)} tensors"]
    if halves.budget < 1:
        most = halves.budget * halves.default_bytes
        head.append(f"{most:>12.0f} bytes allowed: {halves.budget} of {halves.default_bytes}")
    head.append(
        f"{estimated_peak(halves):>12} bytes at the peak of a step, estimated, besides inputs and parameters"
    )
    return "\n".join([*head, *lines, f"computed again: {again}"])


def format_bytecode(fn: Callable[..., Any]) -> str:
    """The bytecode of what is captured first: the function, or the module's forward."""
    target: Any = type(fn).forward if isinstance(fn, nn.Module) else fn
    while isinstance(target, functools.partial):
        target = target.func
    code = getattr(inspect.unwrap(target), "__code__", None)
    return dis.Bytecode(code).dis() if code is not None else f"{target!r} has no bytecode"
