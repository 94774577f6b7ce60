"""The backend `inductor`: torch's own compiler, for comparison. It needs a C++ compiler at run time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, fx

from lampwork.backends.protocol import CompileOptions
from lampwork.graph.copying import copy_graph
from lampwork.verdict import Verdict, Yes


aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class InductorBackend:
    """Takes every node. Weights are arguments of what it makes, as in torch.compile without freezing."""

    name: ClassVar[str] = "inductor"
    keep_ops: ClassVar[tuple[Any, ...]] = (aten.conv1d, aten.conv2d)  # it packs convolutions itself

    def supports(self, node: fx.Node) -> Verdict:
        return Yes()

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        compile_fx: Any = importlib.import_module("torch._inductor.compile_fx").compile_fx
        module = fx.GraphModule(torch.nn.Module(), copy_graph(graph))
        examples = list(example_inputs)
        compiled = compile_fx(module, examples)
        return cast("Callable[..., Sequence[Tensor]]", compiled)
