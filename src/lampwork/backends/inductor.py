"""The backend `inductor`: torch's own compiler, for comparison. It needs a C++ compiler at run time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from torch import Tensor, fx, nn

from lampwork.backends.protocol import CompileOptions
from lampwork.graph.copying import copy_graph
from lampwork.records import record
from lampwork.verdict import Verdict, Yes


@record
class InductorBackend:
    """Takes every node. Weights are arguments of what it makes, as in torch.compile without freezing."""

    name: ClassVar[str] = "inductor"

    def supports(self, node: fx.Node) -> Verdict:
        return Yes()

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        compile_fx: Any = importlib.import_module("torch._inductor.compile_fx").compile_fx
        module = fx.GraphModule(nn.Module(), copy_graph(graph))
        return cast("Callable[..., Sequence[Tensor]]", compile_fx(module, list(example_inputs)))
