"""Random programs that look at the sizes of their arguments, called with random sizes: as eager, whatever they ask."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork

_LENGTH = int(os.environ.get("LAMPWORK_FUZZ", "60"))

# Each step takes the tensor at hand and the number at hand, and gives both anew.
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


def _steps(rng: random.Random) -> Step:
    d = rng.choice((0, 1, -1))
    k = rng.choice((1, 2, 3, 5))
    return rng.choice(
        (
            lambda x, n: (x * n, n),
            lambda x, n: (x + x.shape[d], n + x.size(d)),
            lambda x, n: (x.reshape(-1), x.numel()),
            lambda x, n: (x.flatten().view(x.shape), n),
            lambda x, n: (x.unsqueeze(d), n + 1),
            lambda x, n: (x.transpose(0, -1), n),
            lambda x, n: (x.transpose(0, -1).contiguous(), n * 2),
            lambda x, n: (torch.cat([x, x], d), n),
            lambda x, n: (torch.cat([x, x[:k]], 0), x.shape[0]),
            lambda x, n: (x[: x.shape[0] // 2 + 1], n // 2),
            lambda x, n: (x[-k:], n),
            lambda x, n: (x.sum(d, keepdim=True), n),
            lambda x, n: (x.mean(d, keepdim=True) * x.shape[d], n - 1),
            lambda x, n: (x.softmax(d), n),
            lambda x, n: (x - x.amax(d, keepdim=True), n),
            lambda x, n: (x + torch.arange(x.shape[-1]), n),
            lambda x, n: (x.cumsum(d), n),
            lambda x, n: (torch.nn.functional.pad(x, (k, 0)), n + k),
            lambda x, n: (x.expand(2, *x.shape).sum(0), n),
            lambda x, n: (x @ x.transpose(-1, -2) if x.dim() > 1 else x, n),
            lambda x, n: (x.new_full((x.shape[d], k), n).sum() + x, n),
            lambda x, n: (x * 2 if x.shape[d] > k else x / 2, n),
            lambda x, n: (x + 1 if n % k == 0 else x - 1, n),
            lambda x, n: (x.repeat_interleave(2, d), n * 2),
            lambda x, n: (x.roll(k, d), n),
            lambda x, n: (x.tril() if x.dim() > 1 else x, n),
            lambda x, n: (torch.stack([x, x * n], 0).amax(0), n),
            lambda x, n: (x.masked_fill(torch.arange(x.shape[-1]) < k, 0.5), min(n, x.shape[0])),
            lambda x, n: (x.split(k, 0)[0], n),
            lambda x, n: (x.chunk(2, d)[0], max(n, k)),
            lambda x, n: (x.new_zeros(x.shape[0], n % 4 + 1).sum(1).sum() + x, n),
            lambda x, n: (x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1)), n),
            lambda x, n: (x.view(1, *x.shape).squeeze(0), len(x.shape) + n),
        )
    )


def _program(rng: random.Random) -> Callable[[Tensor, int], Any]:
    steps = [_steps(rng) for _ in range(rng.randint(1, 7))]

    def run(x: Tensor, n: int) -> Any:
        for step in steps:
            x, n = step(x, n)
        return x, n, x.shape

    return run


@pytest.mark.parametrize("seed", range(_LENGTH))
def test_fuzz_sizes(seed: int) -> None:
    rng = random.Random(seed)
    program = _program(rng)
    compiled = lampwork.compile(program, dynamic=rng.choice((None, None, True)))
    rank = rng.choice((1, 2, 2, 3))
    for _ in range(6):
        x = (
            torch.rand([rng.choice((1, 2, 3, 4, 6, 7, 16, 33)) for _ in range(rank)], dtype=torch.float64)
            + 0.5
        )
        n = rng.choice((0, 1, 2, 3, 5, -2))
        try:
            want = program(x, n)
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                compiled(x, n)
            continue
        got = compiled(x, n)
        assert got[1:] == want[1:] and type(got[1]) is type(want[1]) and type(got[2]) is type(want[2])
        torch.testing.assert_close(got[0], want[0], rtol=1e-9, atol=1e-9)
        assert got[0].stride() == want[0].stride()
