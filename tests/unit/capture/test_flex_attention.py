"""flex_attention in one region, against eager: score and mask functions, blocks, grouped heads, what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import lampwork

B, H, M, N, D = 2, 4, 24, 40, 8
SLOPES = torch.rand(H)
DOCUMENTS = torch.arange(64) // 9
LIMIT = torch.tensor(5.0)
DOUBLE = torch.tensor(0.5, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def softcap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return LIMIT * torch.tanh(score / LIMIT)


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + SLOPES[h] * (k - q)


def by_kind(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.where((b + h) % 2 == 0, score * 2, score - k / 7)


def closed(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.where(q < 3, -float("inf"), score)


def wider(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (score * DOUBLE).float()


def of_a_row(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score + score.sum()


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q + 16 >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < 5)


def document(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return DOCUMENTS[q] == DOCUMENTS[k]


def operands(groups: int = H, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = ((B, H, M, D), (B, groups, N, D), (B, groups, N, D + 3))
    return [torch.randn(shape).to(dtype) for shape in shapes]


def check(fn: Callable[..., Any], *inputs: Tensor, breaks: bool = False) -> None:
    compiled = lampwork.compile(fn)
    got, wanted = compiled(*inputs), fn(*inputs)
    tolerance = 2e-2 if inputs[0].dtype in (torch.bfloat16, torch.float16) else 1e-5
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    assert got.stride() == wanted.stride()
    assert bool(compiled.entries[0].region.breaks) == breaks


@pytest.mark.parametrize("score_mod", [None, softcap, alibi, by_kind, closed])
@pytest.mark.parametrize("mask_mod", [None, causal, window, document])
def test_it_is_one_region(score_mod: Any, mask_mod: Any) -> None:
    mask = None
    if mask_mod is not None:
        mask = create_block_mask(mask_mod, None, None, M, N, device="cpu", BLOCK_SIZE=8)
    check(lambda q, k, v: flex_attention(q, k, v, score_mod, mask, scale=0.4), *operands())


@pytest.mark.parametrize("score_mod", [None, softcap])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_grouped_heads_and_other_dtypes(score_mod: Any, dtype: torch.dtype) -> None:
    limit = LIMIT.to(torch.float64) if dtype is torch.float64 else LIMIT

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return limit * torch.tanh(score / limit)

    mod = None if score_mod is None else capped
    check(lambda q, k, v: flex_attention(q, k, v, mod, enable_gqa=True), *operands(2, dtype))


def test_a_query_in_another_layout_gives_its_own() -> None:
    q, k, v = (torch.randn(B, n, H, D).transpose(1, 2) for n in (M, N, N))
    check(lambda q, k, v: flex_attention(q, k, v, softcap), q, k, v)
    check(lambda q, k, v: flex_attention(q, k, v), q, k, v)


@pytest.mark.parametrize("score_mod", [wider])
def test_what_is_more_than_arithmetic_on_numbers_runs_in_eager(score_mod: Any) -> None:
    check(lambda q, k, v: flex_attention(q, k, v, score_mod), *operands(), breaks=True)


def test_a_function_of_all_scores_is_not_one_of_each() -> None:
    check(lambda q, k, v: flex_attention(q, k, v, of_a_row), *operands(), breaks=True)


def test_what_eager_refuses() -> None:
    q, k, v = operands()
    mask = create_block_mask(causal, None, None, M, 48, device="cpu", BLOCK_SIZE=8)
    for call in (
        lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2]),
        lambda q, k, v: flex_attention(q, k, v, block_mask=mask),
        lambda q, k, v: flex_attention(q.clone().requires_grad_(), k, v),
    ):
        with pytest.raises(Exception) as wanted:
            call(q, k, v)
        with pytest.raises(type(wanted.value)) as got:
            lampwork.compile(call)(q, k, v)
        assert str(got.value) == str(wanted.value)
