"""Functions of torch whose work a card cuts into pieces, run on this CPU thread after thread, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scalar_target import native_on
from torch import Tensor

import lampwork
from lampwork.codegen.gpu.nvidia import emulated

SHAPES = ((2, 65536), (1, 131072), (300, 64), (3, 32768))


def check(fn: Callable[..., Any], *given: Tensor, tolerance: float = 1e-4) -> None:
    with native_on(emulated()):
        got = lampwork.compile(fn)(*given)
    if given[0].dtype is not torch.float32:
        tolerance = 2e-2
    torch.testing.assert_close(got, fn(*given), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    check(lambda x: (x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1)), x)
    check(lambda x: (x.mean(-1), x.var(-1)), x)
    check(lambda x: (F.layer_norm(x, (x.shape[-1],)), F.rms_norm(x, (x.shape[-1],))), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_losses(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, labels = torch.randn(shape, dtype=dtype), torch.randint(0, shape[1], (shape[0],))
    if shape[0] > 1:
        labels[0] = -100
    check(F.cross_entropy, x, labels)
    check(lambda x, y: F.cross_entropy(x, y, reduction="sum", label_smoothing=0.1), x, labels, tolerance=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(65536, 2), (4096, 48), (300, 64), (1000, 257)])
def test_columns(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    check(lambda x: (x.sum(0), x.amax(0), x.mean(0) * 2, (x * x).sum(0)), x, tolerance=1e-3)


def test_infinities_and_nan() -> None:
    x = torch.randn(5, 65536)
    x[0, :40000] = float("-inf")
    x[1] = float("-inf")
    x[2, 7] = float("nan")
    x[3, 9] = float("inf")
    check(lambda x: (x.softmax(-1), x.logsumexp(-1)), x[:2].clone())
    check(lambda x: (x.softmax(-1), x.log_softmax(-1), x.var(-1)), x[2:4].clone())
    check(lambda x: x.var(-1), x[3:] + 1000, tolerance=1e-3)


def test_gradients() -> None:
    def loss(x: Tensor, labels: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        F.cross_entropy(x, labels).backward()
        assert x.grad is not None
        return x.grad

    check(loss, torch.randn(2, 65536), torch.randint(0, 65536, (2,)), tolerance=1e-5)
    check(loss, torch.randn(500, 300), torch.randint(0, 300, (500,)), tolerance=1e-5)
