"""Random products with random variants: whatever wins a measurement computes what eager does."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import HERE
from torch import Tensor, nn

import lampwork
from lampwork.backends.native.tuning import tune

SEEDS = range(int(os.environ.get("LAMPWORK_FUZZ_SEED", "0")), int(os.environ.get("LAMPWORK_FUZZ", "12")))


def size(rng: random.Random, most: int) -> int:
    return rng.choice((1, 2, 3, 5, 8, 16, 17, 31, 48, 64, 65, rng.randrange(1, most)))


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).eval()


def products(rng: random.Random) -> tuple[Any, Tensor]:
    """A function over one tensor with some matrix products, and what to call it with."""
    act = rng.choice((nn.ReLU(), nn.GELU(), nn.Identity(), nn.Tanh()))
    kind = rng.randrange(5)
    if kind <= 1:
        a, b, c = size(rng, 600), size(rng, 200), size(rng, 200)
        lead = (size(rng, 90),) if rng.random() < 0.6 else (rng.randrange(1, 4), size(rng, 40))
        bias = rng.random() < 0.7
        return sequence(nn.Linear(a, b, bias), act, nn.Linear(b, c, bias)), torch.randn(*lead, a)
    if kind == 2:
        m, k = size(rng, 120), size(rng, 300)
        other = torch.randn(k, size(rng, 90))
        if rng.random() < 0.5:
            return lambda x: torch.relu(x @ x.transpose(-1, -2)) + 1, torch.randn(2, m, k)
        return lambda x: (x @ other.to(x.dtype)).sigmoid(), torch.randn(m, k)
    if kind == 3:
        channels, outputs = rng.choice((3, 8, 16, 40)), rng.choice((8, 16, 33, 64))
        taps = rng.choice((1, 3))
        conv = nn.Conv2d(channels, outputs, taps, rng.choice((1, 2)), padding=rng.choice((0, taps // 2)))
        return sequence(conv, act), torch.randn(
            rng.choice((1, 2)), channels, size(rng, 20) + 3, rng.randrange(3, 20)
        )
    heads, width = rng.randrange(1, 4), rng.choice((16, 40, 64))
    length = rng.choice((7, 64, 200, 400))
    causal = rng.random() < 0.5
    return (
        lambda x: F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=causal),
        torch.randn(1, heads, length, width),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_wins(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    fn, x = products(rng)
    dtype = rng.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16))
    isa, dynamic = rng.choice(HERE), rng.choice((None, None, True))
    winners: list[str] = []

    def measure(runs: Any, kept: str) -> dict[str, float]:
        name = rng.choice([each for each in runs if each] or [kept])
        winners.append(name)
        return {each: 0.1 if each == name else 1.0 for each in runs}

    monkeypatch.setattr(tune, "measure", measure)
    tune.forget()
    try:
        with torch.no_grad():
            exact = fn.double()(x.double()) if isinstance(fn, nn.Module) else fn(x.double())
            if isinstance(fn, nn.Module):
                fn.to(dtype)
                exact = fn.double()(x.to(dtype).double())
                fn.to(dtype)
            else:
                exact = fn(x.to(dtype).double())
            x = x.to(dtype)
            eager = fn(x)
            options = {"isa": isa, "cache": "off"}
            tuned = lampwork.compile(fn, mode="max-autotune", dynamic=dynamic, options=options)
            ours = tuned(x)
    finally:
        tune.forget()
    said = f"seed {seed}: {winners} {dtype} {isa} {tuple(x.shape)}"
    assert ours.dtype == eager.dtype and ours.stride() == eager.stride(), said
    scale = exact.square().mean().sqrt() + 1e-30
    error, allowed = ((each.double() - exact).square().mean().sqrt() / scale for each in (ours, eager))
    assert error <= 2 * allowed + 1e-6, said
