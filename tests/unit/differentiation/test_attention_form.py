"""Attention is differentiated as products around a softmax where its scores are few."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import lampwork
from lampwork.differentiation import attention
from lampwork.runtime import autograd


@pytest.fixture(autouse=True)
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "AHEAD", True)


def _inputs(batch: int, heads: int, rows: int, columns: int, size: int, turned: bool) -> list[Tensor]:
    torch.manual_seed(rows + columns)
    made: list[Tensor] = []
    for length in (rows, columns, columns):
        outer = (length, heads) if turned else (heads, length)
        tensor = torch.randn(batch, *outer, size)
        made.append((tensor.transpose(1, 2) if turned else tensor).detach().requires_grad_())
    return made


def _gradients(function: Any, tensors: list[Tensor]) -> list[Tensor]:
    result = function(*tensors)
    weights = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view(result.shape)
    weights = torch.empty_like(result).copy_(
        weights
    )  # backward is compiled for gradients that are laid out as results
    return [result, *torch.autograd.grad((result * weights).sum(), tensors)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("shape", "turned"),
    [
        ((2, 3, 17, 17, 8), False),
        ((2, 3, 33, 33, 16), True),
        ((1, 2, 5, 70, 4), False),
        ((1, 2, 70, 5, 4), True),
        ((3, 1, 1, 9, 2), False),
        ((1, 1, 1, 1, 1), False),
    ],
)
def test_gradients(shape: tuple[int, int, int, int, int], turned: bool, is_causal: bool) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.3) * 2

    tensors = _inputs(*shape, turned)
    compiled = lampwork.compile(attend)
    before = lampwork.stats()["compiled_backwards"]
    ours = _gradients(compiled, tensors)
    assert lampwork.stats()["compiled_backwards"] == before + 1
    assert "flash" not in str(compiled.stages.backward)
    eager = _gradients(attend, tensors)
    exact = _gradients(attend, [tensor.detach().double().requires_grad_() for tensor in tensors])
    for got, usual, true in zip(ours, eager, exact, strict=True):
        scale = float(true.detach().abs().max())
        torch.testing.assert_close(got.double(), true, rtol=1e-5, atol=1e-5 * max(scale, 1e-3))
        assert 1 in got.shape or got.stride() == usual.stride()


def _stages(function: Any, tensors: list[Tensor]) -> str:
    compiled = lampwork.compile(function)
    compiled(*tensors).sum().backward()
    return str(compiled.stages.backward)


def test_what_is_eagers_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = _inputs(1, 2, 20, 20, 8, False)
    mask = torch.randn(20, 20)
    assert "flash" in _stages(lambda q, k, v: scaled_dot_product_attention(q, k, v, mask) * 2, tensors)
    monkeypatch.setattr(attention, "MOST_COLUMNS", 19)
    assert "flash" in _stages(lambda q, k, v: scaled_dot_product_attention(q, k, v) * 2, tensors)
