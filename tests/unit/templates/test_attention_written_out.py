"""Attention that the user wrote out becomes the template where only the softmax reads the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from instruction_sets import INSTRUCTION_SETS
from scalar_target import native_on, target_named
from torch import Tensor

import lampwork

N = 200


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * 0.3


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(5 * torch.tanh(scores(q, k) / 5), -1) @ v


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(N)[:, None], torch.arange(N)
    near = torch.where((j <= i) & (i - j < 30), 5 * torch.tanh(scores(q, k) / 5), float("-inf"))
    return torch._safe_softmax(near, -1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    slopes = torch.arange(1, q.shape[1] + 1)[:, None, None]
    return torch._safe_softmax(scores(q, k) + (q.mean() - 1) / slopes, -1) @ v


def nothing_open(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(N)[:, None], torch.arange(N)
    return torch._safe_softmax(torch.where(j < i - 3, scores(q, k), float("-inf")), -1) @ v


def fewer_from_row_to_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(N)[:, None], torch.arange(N)
    return (
        torch._safe_softmax(torch.where((i + j < 90) & (150 - i < j + 99), scores(q, k), float("-inf")), -1)
        @ v
    )


def read_again(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(scores(q, k), -1)
    return weights @ v, weights.sum()


def nan_where_nothing_is_open(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i, j = torch.arange(N)[:, None], torch.arange(N)
    return torch.softmax(torch.where(j < i - 3, 2 * scores(q, k), float("-inf")), -1) @ v


def capped_and_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Gemma 2."""
    i, j = torch.arange(N)[:, None], torch.arange(N)
    mask = torch.where((j <= i) & (i - j < 30) & (q[:, :1, :1, :1] < 9), 0.0, torch.finfo(torch.float32).min)
    wide = k[:, :, None].expand(*k.shape[:2], 2, *k.shape[2:]).flatten(1, 2)
    values = v[:, :, None].expand(*v.shape[:2], 2, *v.shape[2:]).flatten(1, 2)
    weights = torch.softmax(torch.tanh(scores(q.repeat(1, 2, 1, 1), wide) / 5) * 5 + mask, -1)
    return (weights @ values).transpose(1, 2).contiguous()


def capped_nothing_open(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """nan in the first rows."""
    i, j = torch.arange(N)[:, None], torch.arange(N)
    return torch.softmax(torch.where(j < i - 3, torch.tanh(scores(q, k)), float("-inf")), -1) @ v


def over_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(scores(q, k), -2) @ v


def operands() -> list[Tensor]:
    return [torch.randn(2, 3, N, size) for size in (16, 16, 20)]


def is_folded(fn: Callable[..., Any], isa: str) -> bool:
    """Whether the compiled function has the template; its results are compared with float64."""
    inputs = operands()
    with native_on(target_named(isa)), torch.no_grad():
        compiled = lampwork.compile(fn)
        got, exact = compiled(*inputs), fn(*(x.double() for x in inputs))
    for mine, wanted in zip(_several(got), _several(exact), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    return "into an attention: scores exist a block at a time" in compiled.stages.fusion


def _several(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
@pytest.mark.parametrize(
    "fn",
    [
        capped,
        window,
        biased,
        nothing_open,
        fewer_from_row_to_row,
        capped_nothing_open,
        capped_and_masked,
    ],
)
def test_it_becomes_the_template(fn: Callable[..., Any], isa: str) -> None:
    assert is_folded(fn, isa)


@pytest.mark.parametrize("fn", [read_again, nan_where_nothing_is_open, over_rows])
def test_it_stays_two_products(fn: Callable[..., Any]) -> None:
    assert not is_folded(fn, "sse4")
