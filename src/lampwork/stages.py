"""`compiled.stages`: everything between the Python function and the machine code, printable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

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
    """The stages of one compiled version. Each is text, made when first asked for; `print(stages)` lists them.

    `graph` is the ATen graph as recorded; `run` executes it eagerly on the graph's inputs and bound tensors, in that
    order, and `python` is its source as runnable Python.
    """

    name: str = ""
    aten: fx.Graph | None = None
    makers: dict[str, Callable[[], str]] = field(default_factory=dict[str, Callable[[], str]])
    _texts: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, stage: str, make: Callable[[], str]) -> None:
        """Provide a stage by a function that makes its text."""
        if stage not in ORDER:
            raise ValueError(f"{stage!r} is no stage; the stages are {', '.join(ORDER)}")
        self.makers[stage] = make
        self._texts.pop(stage, None)

    def text(self, stage: str) -> str:
        """The text of a stage.

        Raises:
            KeyError: this version has no such stage (a region without tensor work has no kernels).
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
        from lampwork.graph.printing import to_python

        return to_python(self._graph())

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Execute the recorded ATen graph eagerly."""
        from lampwork.graph.interpret import run_graph

        return run_graph(self._graph(), tensors)

    def _graph(self) -> fx.Graph:
        if self.aten is None:
            raise AttributeError("this version does no tensor work, so it has no graph")
        return self.aten

    def __str__(self) -> str:
        parts = [f"{self.name}: stages {', '.join(self)}"]
        parts += [f"\n==== {stage} ====\n{self.text(stage)}" for stage in self]
        return "\n".join(parts)
