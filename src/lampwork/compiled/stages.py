"""`compiled.stages`: everything between the Python function and the machine code, printable."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx, nn

from lampwork import config, logs
from lampwork.graph.interpret import run_graph
from lampwork.graph.printing import to_python
from lampwork.plugins.context import BackendPasses
from lampwork.standard import functools

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
)


@dataclass(slots=True)
class Stages:
    """The stages of one compiled version. Each is a text that is made on first access; `print(stages)` shows them all.

    `graph` is the recorded ATen graph; `run` executes it eagerly on the graph's inputs and bound tensors, in that
    order; `python` is its source as runnable Python.
    """

    name: str = ""
    aten: fx.Graph | None = None
    backend_passes: BackendPasses = ()
    counts: dict[str, int] = field(default_factory=dict[str, int])
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    makers: dict[str, Callable[[], str]] = field(default_factory=dict[str, Callable[[], str]])
    _texts: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, stage: str, make: Callable[[], str]) -> None:
        """Add a stage, given a function that makes its text."""
        if stage not in ORDER:
            raise ValueError(f"{stage!r} is no stage; the stages are {', '.join(ORDER)}")
        self.makers[stage] = make
        self._texts.pop(stage, None)

    def text(self, stage: str) -> str:
        """The text of a stage.

        Raises:
            KeyError: this version has no such stage; a region without tensor operations has no kernels, for instance.
        """
        if stage not in self.makers:
            raise KeyError(f"no stage {stage!r}; there are {', '.join(self)}")
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
                raise AttributeError(str(error)) from None
        raise AttributeError(name)

    def __dir__(self) -> list[str]:
        return [*self, "run", "python", "text", "name", "aten"]

    @property
    def python(self) -> str:
        """The recorded ATen graph as Python source."""
        return to_python(self._graph())

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Execute the recorded ATen graph eagerly."""
        return run_graph(self._graph(), tensors)

    def summary(self) -> str:
        """A summary of a few lines: what the graph was compiled to, and the seconds that each step took."""
        counts = ", ".join(f"{value} {name}" for name, value in self.counts.items())
        seconds = ", ".join(f"{name} {value:.3f} s" for name, value in self.seconds.items())
        return f"{self.name}: {counts}\ncompiled in {sum(self.seconds.values()):.2f} s: {seconds}"

    def _graph(self) -> fx.Graph:
        if self.aten is None:
            raise AttributeError("this version does no tensor work, so it has no graph")
        return self.aten

    def __str__(self) -> str:
        parts = [f"{self.name}: stages {', '.join(self)}"]
        parts += [f"\n==== {stage} ====\n{self.text(stage)}" for stage in self]
        return "\n".join(parts)


def keep(stages: Stages, stage: str, topic: str, make: Callable[[], str]) -> None:
    """Offer a stage for printing, and print it now if its log topic is on."""
    stages.add(stage, make)
    if logs.enabled(topic):
        logs.emit(topic, f"{stages.name} {stage}\n{stages.text(stage)}")


def dump(stages: Stages) -> None:
    """Write every stage to the dump folder, if there is one."""
    if not config.current().dump:
        return
    for stage in stages:
        logs.dump(stages.name, ORDER.index(stage) + 1, stage, stages.text(stage))


def format_bytecode(fn: Callable[..., Any]) -> str:
    """The bytecode of what is captured first: the function, or the module's forward."""
    target: Any = type(fn).forward if isinstance(fn, nn.Module) else fn
    while isinstance(target, functools.partial):
        target = target.func
    code = getattr(inspect.unwrap(target), "__code__", None)
    return dis.Bytecode(code).dis() if code is not None else f"{target!r} has no bytecode"
