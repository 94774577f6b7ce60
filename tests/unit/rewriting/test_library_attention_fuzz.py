"""Random spellings of attention: whatever the rewrite makes of them, the numbers stay eager's."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable

import pytest
import torch
from graphkit import ops
from same_numbers import close
from test_library_attention import rewritten
from torch import Tensor

BATCH, HEADS, ROWS, COLUMNS, SIZE = 2, 3, 5, 5, 4


def product(rng: random.Random) -> Callable[[Tensor, Tensor], Tensor]:
    return rng.choice(
        [
            lambda q, k: q @ k.transpose(-1, -2),
            lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k),
            lambda q, k: torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(BATCH, HEADS, ROWS, COLUMNS),
            lambda q, k: (q * 0.5) @ k.mT,
            lambda q, k: q @ (k.mT / 3),
        ]
    )


def step(rng: random.Random) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A step on scores, given a mask of bools and a bias."""
    value = rng.choice([-math.inf, -1e9, torch.finfo(torch.float32).min, -5.0])
    number = rng.choice([0.5, 2.0, -1.5])
    return rng.choice(
        [
            lambda s, m, b: s * number,
            lambda s, m, b: s / number,
            lambda s, m, b: s + b,
            lambda s, m, b: b + s,
            lambda s, m, b: s - b,
            lambda s, m, b: s.masked_fill(m, value),
            lambda s, m, b: torch.where(m, s, value),
            lambda s, m, b: torch.where(m, value, s),
            lambda s, m, b: s + torch.where(m, 0.0, value).to(s.dtype),
            lambda s, m, b: s.flatten(0, 1).softmax(-1).log().view(s.shape) if number < 0 else s,
            lambda s, m, b: s * b[..., :1],
            lambda s, m, b: s.view(BATCH * HEADS, ROWS, COLUMNS).view(s.shape).clone(),
        ]
    )


def closing(rng: random.Random) -> Callable[[Tensor, Tensor], Tensor]:
    return rng.choice(
        [
            lambda w, v: w @ v,
            lambda w, v: torch.einsum("bhij,bhjd->bhid", w, v),
            lambda w, v: torch.bmm(w.flatten(0, 1), v.flatten(0, 1)),
            lambda w, v: w.transpose(-1, -2) @ v,
            lambda w, v: (w @ v).transpose(1, 2).reshape(BATCH, ROWS, -1),
        ]
    )


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "120"))))
def test_random_spelling(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    scores, steps, close_with = product(rng), [step(rng) for _ in range(rng.randrange(4))], closing(rng)

    def by_hand(q: Tensor, k: Tensor, v: Tensor, m: Tensor, b: Tensor) -> Tensor:
        s = scores(q, k)
        for one in steps:
            s = one(s, m, b)
        return close_with(s.softmax(-1), v)

    q, k, v = (torch.randn(BATCH, HEADS, n, SIZE) for n in (ROWS, COLUMNS, COLUMNS))
    lead = rng.choice([(), (1,), (BATCH, 1), (1, HEADS), (BATCH, HEADS)])
    mask = torch.rand(*lead, rng.choice([1, ROWS]), COLUMNS) > rng.choice([0.2, 0.8])
    bias = torch.randn(*rng.choice([(HEADS, ROWS), (BATCH, 1, ROWS), (1,)]), COLUMNS)
    bias = bias.masked_fill(torch.rand(bias.shape) > 0.7, -math.inf) if rng.random() < 0.3 else bias
    graph, _ = rewritten(by_hand, q, k, v, mask, bias)
    close(by_hand, graph, q, k, v, mask, bias)


def test_many_of_them_are_fused() -> None:
    fused = 0
    for seed in range(40):
        rng = random.Random(seed)
        scores, closed = product(rng), closing(rng)
        graph, _ = rewritten(
            lambda q, k, v, scores=scores, closed=closed: closed(scores(q, k).softmax(-1), v),
            *(torch.randn(BATCH, HEADS, n, SIZE) for n in (ROWS, COLUMNS, COLUMNS)),
        )
        fused += "scaled_dot_product_attention" in ops(graph)
    assert fused >= 25, fused
