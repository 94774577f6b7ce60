"""The backend `eager`: runs the graph op by op in PyTorch. It takes what no other backend takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor, fx

from lampwork.backends.protocol import CompileOptions
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph
from lampwork.records import record
from lampwork.verdict import Verdict, Yes


@record
class EagerBackend:
    """Supports every node."""

    name: ClassVar[str] = "eager"
    trusted: ClassVar[bool] = True

    def supports(self, node: fx.Node) -> Verdict:
        return Yes()

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        kept = copy_graph(graph)

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            return run_graph(kept, tensors)

        return run
