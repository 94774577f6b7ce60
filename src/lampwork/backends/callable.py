"""A backend made of a function, as `torch.compile` takes them: `fn(gm, example_inputs) -> callable`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from lampwork.backends.protocol import CompileOptions
from lampwork.errors import BackendError
from lampwork.graph.copying import copy_graph
from lampwork.graph.spec import TensorSpec
from lampwork.verdict import Verdict, Yes


@dataclass(frozen=True, slots=True)
class CallableBackend:
    """Hands whole graphs to `function(gm, example_inputs)`.

    `gm` is a GraphModule of functional ATen operators: its inputs are the region's, then the tensors it is bound to
    (parameters, buffers); it returns a tuple. `example_inputs` are zeros with the sizes, strides and dtypes of those.
    What `function` returns is called with tensors in the same order and returns the outputs in order.
    """

    function: Callable[..., Any]

    @property
    def name(self) -> str:
        return described(self.function)

    def supports(self, node: fx.Node) -> Verdict:
        return Yes()

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        copy = copy_graph(graph)
        specs = [cast(TensorSpec, node.meta["val"]) for node in copy.nodes if node.op == "placeholder"]
        module = fx.GraphModule(torch.nn.Module(), copy)
        compiled = self.function(module, list(example_inputs) or [_example(spec) for spec in specs])
        if not callable(compiled):
            raise BackendError(
                f"backend {described(self.function)} returned {type(compiled).__name__}, which is not callable",
                fix="return a function of the graph's inputs, such as gm.forward",
            )
        outputs = len(cast("tuple[Any, ...]", next(iter(reversed(copy.nodes))).args[0]))

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            results = compiled(*tensors)
            results = results if isinstance(results, (tuple, list)) else (results,)
            if len(results) != outputs:
                raise BackendError(
                    f"backend {described(self.function)} returned {len(results)} outputs, the graph has {outputs}",
                    fix="return all outputs of the graph, in order",
                )
            return cast("Sequence[Tensor]", results)

        return run


def described(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _example(spec: TensorSpec) -> Tensor:
    """A tensor with this shape, layout and dtype."""
    sizes, strides = [int(size) for size in spec.shape], [int(stride) for stride in spec.strides]
    made = torch.empty_strided(sizes, strides, dtype=spec.dtype, device=spec.device).zero_()
    return made.requires_grad_() if spec.requires_grad else made
