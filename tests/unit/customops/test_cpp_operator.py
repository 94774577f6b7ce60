"""The example `examples/cpp_operator`: an operator in C++, built here, put into a model by a rewrite."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork
from lampwork import No, Yes
from lampwork.graph.copying import copy_graph
from lampwork.graph.interpret import run_graph

EXAMPLE = Path(__file__).parents[3] / "examples" / "cpp_operator"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"),
]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The example's module, its operator built once for this session."""
    sys.path.insert(0, str(EXAMPLE))
    import add_div

    add_div.build(tmp_path_factory.mktemp("cpp_operator"))
    return add_div


@pytest.fixture
def fused(example: Any) -> Iterator[Any]:
    registered = example.fuse_add_div()
    yield registered
    registered.unregister()


def _model(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax((x + y) / 3.0, dim=-1)


def test_the_operator_gives_eagers_bits(example: Any) -> None:
    x, y = torch.randn(37, 41), torch.randn(37, 41)
    add_div = torch.ops.mine.add_div
    assert torch.equal(add_div(x, y, 3.0), (x + y) / 3.0)
    assert torch.equal(add_div(x.t(), y.t(), 3.0), (x.t() + y.t()) / 3.0)
    assert torch.equal(add_div(x, y[0], 3.0), (x + y[0]) / 3.0)
    assert torch.equal(add_div(x.double(), y, 7.0), (x.double() + y) / 7.0)
    torch.library.opcheck(
        torch.ops.mine.add_div.default, (x, y, 2.0), test_utils=("test_schema", "test_faketensor")
    )


def test_the_rewrite_puts_it_in(fused: Any) -> None:
    compiled = lampwork.compile(_model)
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    torch.testing.assert_close(compiled(x, y), _model(x, y))
    assert fused.hits == 1
    assert compiled.stages.partition == "part 0: native, 2 nodes: mine.add_div, softmax"


def test_a_tensor_divisor_is_left_alone(fused: Any) -> None:
    compiled = lampwork.compile(lambda x, y: (x + y) / y)
    x, y = torch.randn(8), torch.randn(8)
    torch.testing.assert_close(compiled(x, y), (x + y) / y)
    assert fused.hits == 0


def test_sizes_that_change(fused: Any) -> None:
    compiled = lampwork.compile(_model)
    for rows in (3, 5, 9):
        x, y = torch.randn(rows, 16), torch.randn(rows, 16)
        torch.testing.assert_close(compiled(x, y), _model(x, y))


def test_gradients_are_eagers(fused: Any) -> None:
    """The operator has no gradient; backward goes through what was recorded before the rewrite."""
    compiled = lampwork.compile(_model)
    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5)
    compiled(x, y).square().sum().backward()
    ours, x.grad = x.grad, None
    _model(x, y).square().sum().backward()
    torch.testing.assert_close(ours, x.grad)


def test_a_backend_claims_it(fused: Any) -> None:
    class Claims:
        name = "claims"

        def supports(self, node: Any) -> Any:
            return Yes() if node.target is torch.ops.mine.add_div.default else No("only mine.add_div")

        def compile(self, graph: Any, example_inputs: Any, options: Any) -> Any:
            kept = copy_graph(graph)
            return lambda *tensors: run_graph(kept, tensors)

    compiled = lampwork.compile(_model, backend=[Claims(), "native"])
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    torch.testing.assert_close(compiled(x, y), _model(x, y))
    assert "claims, 1 nodes: mine.add_div" in compiled.stages.partition
