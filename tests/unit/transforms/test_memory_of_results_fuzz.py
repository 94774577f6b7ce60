"""Random copies of random views: a result begins, ends and lies in memory as eager's does, whatever passes drop."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "40"))

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda t: t[1:],
    "columns": lambda t: t[:, 1:3],
    "select": lambda t: t[:, :1],
    "step": lambda t: t[::2],
    "transpose": lambda t: t.transpose(0, 1),
    "expand": lambda t: t[:1].expand(t.shape),
    "again": lambda t: t.unsqueeze(0).squeeze(0),
    "split": lambda t: t.split(2)[1],
    "diagonal": lambda t: t.diagonal().unsqueeze(1).expand(-1, 4),
}
COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": lambda t: t.clone(),
    "contiguous": lambda t: t.clone(memory_format=torch.contiguous_format),
    "times one": lambda t: t * 1,
    "over one": lambda t: t / 1,
    "negated twice": lambda t: t.neg().neg(),
    "cat": lambda t: torch.cat([t]),
    "there and back": lambda t: t.double().float(),
    "to": lambda t: t.to(torch.float32, copy=True),
    "copied into": lambda t: torch.empty(t.shape).copy_(t),
    "chosen": lambda t: torch.where(t == t, t, t),
    "filled nowhere": lambda t: t.masked_fill(torch.zeros(t.shape, dtype=torch.bool), 0.0),
    "positive": lambda t: t.positive(),
    "none": lambda t: t,
}


def seen(result: Tensor) -> tuple[object, ...]:
    """What a caller can tell of a result's memory."""
    storage = result.untyped_storage()
    return result.storage_offset(), result.stride(), storage.nbytes(), result.tolist()


@pytest.mark.parametrize("seed", range(_COUNT))
def test_memory_of_results_fuzz(seed: int) -> None:
    rng = random.Random(seed)
    names = [rng.choice(list(VIEWS)) for _ in range(rng.randint(1, 3))]
    copies = [rng.choice(list(COPIES)) for _ in range(rng.randint(1, 2))]
    print(f"seed {seed}: {names} {copies}")

    def model(x: Tensor) -> Tensor:
        y = x + 1
        for name in names:
            y = VIEWS[name](y)
        for name in copies:
            y = COPIES[name](y)
        return y

    x = torch.randn(8, 8)
    try:
        expected = model(x)
    except (RuntimeError, IndexError):
        pytest.skip("the views do not fit")
    with torch.no_grad():
        assert seen(lampwork.compile(model)(x)) == seen(expected)
