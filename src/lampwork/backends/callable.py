"""A backend made from a function as for `torch.compile`: `fn(gm, example_inputs) -> callable`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from lampwork.backends.protocol import CompileOptions
from lampwork.graph.copying import copy_graph
from lampwork.records import record
from lampwork.verdict import No, Yes


@record
class CallableBackend:
    """Passes whole parts to `function(gm, example_inputs)`.

    `gm` is a GraphModule of functional ATen operators: its inputs are those of the part, then the tensors bound to it
    (parameters, buffers and what is computed from them); it returns a tuple. `example_inputs` are invented tensors of
    the right sizes, strides and dtypes, for the bound tensors too. The callable that `function` returns is called with
    tensors in the same order and returns the outputs in order.

    `takes`: the operators that it is given, or a function that answers as `Backend.supports` does; None: all.
    `decompose`: as of any backend. `called`: its name, by default the function's.
    """

    function: Callable[..., Any]
    called: str = ""
    takes: frozenset[OpOverload] | Callable[[fx.Node], Any] | None = None
    decompose: str = ""

    @property
    def name(self) -> str:
        function: Any = self.function
        return self.called or str(getattr(function, "__qualname__", None) or type(function).__qualname__)

    def supports(self, node: fx.Node) -> Any:
        if self.takes is None:
            return Yes()
        if callable(self.takes):
            return self.takes(node)
        return (
            Yes() if node.target in self.takes else No("it is not among the operators it was registered for")
        )

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        module = fx.GraphModule(torch.nn.Module(), copy_graph(graph))
        return self.function(module, list(example_inputs))
