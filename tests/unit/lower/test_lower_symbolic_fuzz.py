"""Random programs over (batch, length, width), batch and length symbolic: compiled once, against eager in float64."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from symbolic_harness import check_sizes, compile_symbolic
from torch import Tensor

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "25"))
_WIDTH = 12

Step = Callable[[Tensor], Tensor]
"""From (b, t, 12) to (b, t, 12)."""


def _weights(rng: random.Random, *shape: int) -> Tensor:
    return torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(rng.randrange(1000))
    )


def _attention(rng: random.Random) -> Step:
    heads, causal = rng.choice((1, 2, 3)), rng.random() < 0.5

    def step(x: Tensor) -> Tensor:
        split = x.view(x.shape[0], x.shape[1], heads, _WIDTH // heads).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(split, split, split, is_causal=causal)
        return mixed.transpose(1, 2).reshape(x.shape)

    return step


def _linear(rng: random.Random) -> Step:
    hidden = rng.choice((5, 12, 40))
    up, down = _weights(rng, hidden, _WIDTH), _weights(rng, _WIDTH, hidden)
    activation = rng.choice((F.gelu, F.relu, torch.tanh))
    return lambda x: F.linear(activation(F.linear(x, up)), down) * 0.1


def _scores(rng: random.Random) -> Step:
    dim = rng.choice((-1, 1))

    def step(x: Tensor) -> Tensor:
        scores = (x @ x.transpose(1, 2)) / x.shape[1]
        mask = torch.arange(x.shape[1])[:, None] >= torch.arange(x.shape[1])
        return scores.masked_fill(~mask, -5.0).softmax(dim) @ x

    return step


def _step(rng: random.Random) -> Step:
    d = rng.choice((0, 1, 2))
    k = rng.choice((1, 2, 3))
    gain = _weights(rng, _WIDTH)
    simple: list[Step] = [
        lambda x: F.layer_norm(x, (_WIDTH,), gain),
        lambda x: x.softmax(d),
        lambda x: x - x.mean(d, keepdim=True),
        lambda x: x / x.shape[1] + x.shape[0],
        lambda x: x.cumsum(d) * 0.1,
        lambda x: x.roll(1, d).flip(d),
        lambda x: torch.cat([x, x * 2], 1)[:, : x.shape[1]],
        lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: x.reshape(-1, _WIDTH).t().contiguous().t().view(x.shape),
        lambda x: x.reshape(x.shape[0] * x.shape[1], 3, 4).transpose(1, 2).reshape(x.shape),
        lambda x: F.pad(x, (0, 0, k, 0))[:, k:] + x[:, :1],
        lambda x: x + torch.arange(x.shape[1])[:, None] * 0.01,
        lambda x: x * torch.full((x.shape[1], 1), x.numel(), dtype=torch.float64).log(),
        lambda x: torch.where(x > x.amax((0, 1), keepdim=True) * 0.5, x, -x),
        lambda x: x.index_select(1, torch.arange(x.shape[1] - 1, -1, -1)),
        lambda x: x.sort(1).values,
        lambda x: x.unsqueeze(0).expand(k, -1, -1, -1).sum(0),
        lambda x: x + x.var((0, 2), keepdim=True),
        lambda x: torch.stack([x, x.neg()], d).amax(d),
        lambda x: x.sum() * 0.01 + x,
    ]
    return rng.choice([*simple, _attention(rng), _linear(rng), _linear(rng), _scores(rng)])


@pytest.mark.parametrize("seed", range(_COUNT))
def test_fuzz_symbolic_programs(seed: int) -> None:
    rng = random.Random(seed)
    steps = [_step(rng) for _ in range(rng.randint(2, 7))]

    def program(x: Tensor) -> tuple[Tensor, ...]:
        results = []
        for step in steps:
            x = step(x)
            results.append(x)
        return results[-1], results[len(results) // 2].sum(1)

    hint = {"b": rng.choice((2, 3, 8)), "t": rng.choice((4, 7, 32))}
    inputs = [torch.randn(hint["b"], hint["t"], _WIDTH, dtype=torch.float64)]
    names = [["b", "t", None]]
    compiled = compile_symbolic(program, inputs, names)
    sizes = [hint, *({"b": b, "t": t} for b, t in ((2, 4), (3, 5), (7, 31), (13, 8), (5, 130)))]
    assert check_sizes(compiled, program, inputs, names, sizes, 1e4) >= 3, [
        str(c) for c in compiled.conditions
    ]
