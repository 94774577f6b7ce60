"""Operators of torch.library in patterns and replacements, and claimed by a backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import custom_ops
import pytest
import torch
from torch import Tensor

import lampwork
from lampwork import No, Yes
from lampwork.graph.interpret import run_graph

ops = torch.ops.lw_custom
X, Y = torch.randn(4, 5), torch.randn(4, 5)


@pytest.fixture
def register() -> Iterator[Any]:
    made: list[Any] = []

    def add(*args: Any, **options: Any) -> Any:
        made.append(lampwork.rewrite(*args, **options))
        return made[-1]

    yield add
    for item in made:
        item.unregister()


def _model(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax((x + y) / 3.0, dim=-1)


def _add_div(x: Tensor, y: Tensor, c: float) -> Tensor:
    return (x + y) / c


def test_functions_put_an_operator_in(register: Any) -> None:
    fused = register(_add_div, lambda x, y, c: ops.add_div(x, y, c))
    compiled = lampwork.compile(_model)
    torch.testing.assert_close(compiled(X, Y), _model(X, Y))
    assert fused.hits == 1
    assert compiled.stages.partition == "part 0: native, 2 nodes: lw_custom.add_div, softmax"


def test_text_puts_an_operator_in(register: Any) -> None:
    fused = register("div(add(x, y), c:any)", "lw_custom.add_div(x, y, c)")
    compiled = lampwork.compile(_model)
    torch.testing.assert_close(compiled(X, Y), _model(X, Y))
    assert fused.hits == 1 and "lw_custom.add_div" in compiled.stages.partition


def test_a_number_only(register: Any) -> None:
    fused = register(_add_div, lambda x, y, c: ops.add_div(x, y, c))
    compiled = lampwork.compile(lambda x, y: (x + y) / y)
    torch.testing.assert_close(compiled(X, Y), (X + Y) / Y)
    assert fused.hits == 0


def test_text_takes_an_operator_out(register: Any) -> None:
    gone = register("lw_custom.square(x)", "mul(x, x)")
    compiled = lampwork.compile(lambda x: ops.square(x) + 1)
    torch.testing.assert_close(compiled(X), X * X + 1)
    assert gone.hits == 1 and "lw_custom" not in compiled.stages.partition


def test_a_class_takes_an_operator_out(register: Any) -> None:
    class ScaleTwice:
        """before:  %a = lw_custom.scale(%x, a), %b = lw_custom.scale(%a, b)
        after:   %b = lw_custom.scale(%x, a * b)"""

        def pattern(self, x: Tensor, a: float, b: float) -> Tensor:
            return ops.scale(ops.scale(x, a), b)

        def replacement(self, x: Tensor, a: float, b: float) -> Tensor:
            return ops.scale(x, a * b)

        def check(self, match: Any) -> Any:
            return Yes() if match["a"] > 0 else No("only measured for positive factors")

    one = register(ScaleTwice)
    compiled = lampwork.compile(lambda x: ops.scale(ops.scale(x, 2.0), 4.0))
    torch.testing.assert_close(compiled(X), X * 8)
    assert one.hits == 1
    lampwork.compile(lambda x: ops.scale(ops.scale(x, -2.0), 4.0))(X)
    assert one.hits == 1


class Fused:
    """Claims the operators of one namespace, and has its own implementation of them."""

    name = "fused-ops"

    def supports(self, node: Any) -> Any:
        if getattr(node.target, "namespace", "") == "lw_custom":
            return Yes()
        return No("only operators of lw_custom")

    def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
        self.seen = [str(n.target) for n in graph.nodes if n.op == "call_function"]
        kept = lampwork.graph.copying.copy_graph(graph)
        return lambda *tensors: run_graph(kept, tensors)


def test_a_backend_claims_an_operator() -> None:
    backend = Fused()
    compiled = lampwork.compile(lambda x, y: ops.add_div(x * 2, y, 3.0) + 1, backend=[backend, "native"])
    torch.testing.assert_close(compiled(X, Y), (X * 2 + Y) / 3 + 1)
    names = [line.split(": ", 1)[1] for line in compiled.stages.partition.splitlines()]
    assert names == ["native, 1 nodes: mul", "fused-ops, 1 nodes: lw_custom.add_div", "native, 1 nodes: add"]
    assert backend.seen == ["lw_custom.add_div.default"]


def test_a_rewrite_makes_it_and_a_backend_claims_it(register: Any) -> None:
    register(_add_div, lambda x, y, c: ops.add_div(x, y, c))
    compiled = lampwork.compile(_model, backend=[Fused(), "native"])
    custom_ops.calls.clear()
    torch.testing.assert_close(compiled(X, Y), _model(X, Y))
    assert "fused-ops, 1 nodes: lw_custom.add_div" in compiled.stages.partition


def test_sizes_that_change(register: Any) -> None:
    fused = register(_add_div, lambda x, y, c: ops.add_div(x, y, c))
    compiled = lampwork.compile(_model)
    for rows in (3, 5, 7, 2):
        x, y = torch.randn(rows, 5), torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x, y), _model(x, y))
    assert fused.hits >= 1
