"""Layouts and packed weights are for Lampwork's own backends: others get convolutions as they were written."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import lampwork
from lampwork import No, Yes
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()


class Recorded:
    """Takes what `wanted` says, and notes what it gets."""

    name = "recorded"

    def __init__(self, *wanted: Any) -> None:
        self.wanted = wanted
        self.seen: list[str] = []

    def supports(self, node: Any) -> Any:
        return Yes() if not self.wanted or node.target in self.wanted else No("not wanted")

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        kept = copy_graph(graph)
        self.seen += [str(n.target) for n in kept.nodes if n.op == "call_function"]
        return lambda *tensors: run_graph(kept, tensors)


def outcome(backend: Any) -> tuple[list[str], str]:
    model, x = network(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        compiled = lampwork.compile(model, backend=backend)
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
    first = backend[0] if isinstance(backend, list) else backend
    return first.seen, compiled.stages.partition


def test_a_backend_that_takes_everything_gets_plain_convolutions() -> None:
    seen, _ = outcome(Recorded())
    assert seen == ["aten.conv2d.default", "aten.relu.default", "aten.conv2d.default"]


def test_convolutions_that_it_does_not_take_have_lampworks_layout() -> None:
    seen, partition = outcome([Recorded(torch.ops.aten.relu.default), "native"])
    assert not seen or seen == ["aten.relu.default"]
    assert "native, 2 nodes: clone, conv2d" in partition


def test_what_was_given_a_layout_does_not_go_to_it() -> None:
    class Late(Recorded):
        """Refuses convolutions as they are written, and takes all else."""

        def supports(self, node: Any) -> Any:
            return No("written") if node.target is torch.ops.aten.conv2d.default else Yes()

    seen, partition = outcome([Late(), "native"])
    assert "aten.conv2d.default" not in seen
    assert partition.count("native, 1 nodes: conv2d") == 2
