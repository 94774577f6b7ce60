"""What a backend is: a name, a verdict on each node, and a way to compile a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, fx

from lampwork.backends.native.symbolic import SymbolicProgram
from lampwork.config import Config
from lampwork.runtime.program import Program
from lampwork.verdict import No, Verdict, Yes

__all__ = ["Backend", "CompileOptions", "Compiled", "No", "Verdict", "Yes"]

Compiled = Program | SymbolicProgram | Callable[..., Sequence[Tensor]]
"""What `compile` gives: a Program (of a graph with symbols, one for all sizes), or a function of the graph's
placeholders, in order, to its outputs."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """`mutations`: (placeholder number, output number) pairs: that output is to be copied into that placeholder's
    tensor. A backend with `writes_inputs = True` does so itself; for all others it is done after the call.
    `stages`: where a backend leaves texts to look at, as `stages.add(name, make_text)`; None if nobody looks."""

    config: Config = field(default_factory=Config)
    mutations: tuple[tuple[int, int], ...] = ()
    stages: Any = None


@runtime_checkable
class Backend(Protocol):
    """Compiles subgraphs. Stateless: one object serves all graphs and threads. Cache keys are computed elsewhere.

        class Shouting:
            name = "shouting"

            def supports(self, node):
                return Yes() if node.target is torch.ops.aten.relu.default else No("only relu")

            def compile(self, graph, example_inputs, options):
                print("compiling", graph)
                return lambda *tensors: run_graph(graph, tensors)

        register_backend(Shouting())

    Optional: `writes_inputs: bool` (see CompileOptions.mutations).
    """

    name: ClassVar[str]

    def supports(self, node: fx.Node) -> Verdict:
        """Whether this backend takes a call_function node; `No` says why not. Nodes carry specs in `meta["val"]`."""
        ...

    def compile(self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions) -> Compiled:
        """Compile a functional ATen graph of nodes that `supports` took.

        Its placeholders are inputs first, then bound tensors (`meta["bound"]`); its output is a flat tuple.
        `example_inputs` are tensors like those of the first call, one per placeholder, or empty where there are none:
        specs are what to rely on.

        Raises:
            BackendError: the graph cannot be compiled after all.
        """
        ...
