"""gelu behind linear layers on CUDA devices, under numerics="fast"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import record_on, run_on_cpu
from graphkit import find, ops
from torch import Tensor

from lampwork.backends.native.passes.gelu_in_product import GeluInProduct
from lampwork.config import Config
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.split_constants import SplitConstants

MAKE = torch.Generator().manual_seed(0)


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh") * 2


def passed(
    fn: Callable[..., Any],
    *shape: int,
    dtype: torch.dtype = torch.bfloat16,
    numerics: str = "fast",
    device="cuda:0",
) -> tuple[Any, PassContext]:
    """The graph after the pass; its results are compared with those of float64."""
    x, w, b = (torch.randn(each, generator=MAKE).to(dtype) for each in (shape, (24, shape[-1]), (24,)))
    recorded = record_on(fn, [x], [device], [w, b], [device] * 2)
    ctx = PassContext(Config(numerics=numerics))
    for step in (SplitConstants(), GeluInProduct(), SplitConstants()):
        step.run(recorded.graph, ctx)
        verify(recorded.graph)
    (found,) = run_on_cpu(recorded, [x], [w, b])
    wanted, eager = fn(x.double(), w.double(), b.double()), fn(x, w, b)
    assert found.stride() == eager.stride()
    torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.05)
    return recorded.graph, ctx


@pytest.mark.parametrize("shape", [(8, 16), (2, 5, 16), (2, 3, 4, 16), (1, 16), (0, 16), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gelu_is_computed_in_the_product(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    graph, ctx = passed(layer, *shape, dtype=dtype)
    assert ctx.hits == {GeluInProduct.name: 1}
    assert not {"linear", "gelu"} & {*ops(graph)}
    assert find(graph, "_addmm_activation").kwargs == {"use_gelu": True}


def read_twice(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    return F.gelu(y, approximate="tanh") * y


@pytest.mark.parametrize(
    ("fn", "options", "why"),
    [
        (layer, {"numerics": "eager"}, ""),
        (layer, {"device": "cpu"}, ""),
        (layer, {"dtype": torch.float32}, "the layer computes torch.float32"),
        (lambda x, w, b: F.gelu(F.linear(x, w, b)), {}, "it is the exact form"),
        (lambda x, w, b: F.gelu(F.linear(x, w), approximate="tanh"), {}, "the layer has no bias"),
        (lambda x, w, b: F.gelu(x, approximate="tanh"), {}, "it is not behind a linear layer"),
        (read_twice, {}, "the layer has other readers"),
        (lambda x, w, b: torch.relu(F.linear(x, w, b)), {}, ""),
    ],
)
def test_what_stays(fn: Callable[..., Any], options: dict[str, Any], why: str) -> None:
    graph, ctx = passed(fn, 8, 16, **options)
    assert not ctx.hits and "_addmm_activation" not in ops(graph)
    assert [reason for _, reason in ctx.refusals] == ([why] if why else [])
