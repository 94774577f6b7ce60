"""Bring your own backend: this one takes pointwise operators on small tensors and runs them in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, fx

import lampwork
from lampwork import No, Yes
from lampwork.backends.protocol import CompileOptions
from lampwork.graph.copying import copy_graph
from lampwork.partitioning import dry_run

aten = torch.ops.aten

IN_NUMPY = {
    aten.add.Tensor: np.add,
    aten.mul.Tensor: np.multiply,
    aten.tanh.default: np.tanh,
    aten.neg.default: np.negative,
}


class NumpyBackend:
    name: ClassVar[str] = "numpy"

    def supports(self, node: fx.Node) -> Yes | No:
        if node.target not in IN_NUMPY:
            return No("not in the table")
        if node.kwargs:
            return No("keyword arguments")
        if node.meta["val"].numel > 10_000:
            return No(f"{node.meta['val'].numel} elements are too many for NumPy")
        return Yes()

    def compile(
        self, graph: fx.Graph, example_inputs: Sequence[Tensor], options: CompileOptions
    ) -> Callable[..., Sequence[Tensor]]:
        kept = copy_graph(graph)
        print("numpy compiles", [str(node.target) for node in kept.nodes if node.op == "call_function"])

        def run(*tensors: Tensor) -> Sequence[Tensor]:
            values: dict[fx.Node, object] = {}
            inputs = iter(tensors)
            for node in kept.nodes:
                if node.op == "placeholder":
                    values[node] = next(inputs).numpy()
                elif node.op == "call_function":
                    args = [values[a] if isinstance(a, fx.Node) else a for a in node.args]
                    values[node] = IN_NUMPY[node.target](*args)
                else:
                    return [torch.as_tensor(values[out]) for out in node.args[0]]
            raise AssertionError("a graph ends in its output")

        return run


def step(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x * w + x).softmax(-1) * 2


def main() -> None:
    lampwork.register_backend(NumpyBackend())
    compiled = lampwork.compile(step, backend="numpy")
    x, w = torch.randn(4, 8), torch.randn(4, 8)
    print("same as eager:", torch.allclose(compiled(x, w), step(x, w), atol=1e-6))
    print(dry_run(compiled.stages.aten, [NumpyBackend()]))


if __name__ == "__main__":
    main()
