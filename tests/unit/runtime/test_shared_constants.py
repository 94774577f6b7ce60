"""Constants that lie next to each other in memory: each is right, may change, and may outlive the others."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn

import lampwork

SIZES = (8, 100, 128, 200, 300, 520)
"""The side of each matrix: below and above what is pooled, and ends on no round address."""


class Doubled(nn.Module):
    """A constant of each size, all of which leave the program."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(n, n)) for n in SIZES])

    def forward(self, x: Tensor) -> list[Tensor]:
        return [x.sum(), *(w * 2 for w in self.weights)]


@torch.no_grad()
def test_each_has_memory_of_its_own_and_follows_its_weight() -> None:
    torch.manual_seed(0)
    model, x = Doubled(), torch.randn(3)
    compiled = lampwork.compile(model, options={"strict": True})
    for _ in range(3):
        for got, want in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)
        for w in model.weights:
            w.copy_(torch.randn(w.shape))


@torch.no_grad()
def test_one_outlives_the_others() -> None:
    torch.manual_seed(0)
    model = Doubled()
    compiled = lampwork.compile(model, options={"strict": True})
    kept = compiled(torch.randn(3))[3]
    want = model.weights[2] * 2
    del compiled
    gc.collect()
    others = [torch.full((n, n), 7.0) for n in SIZES]  # would take the memory, had it been given back
    torch.testing.assert_close(kept, want, rtol=0, atol=0)
    assert len(others) == len(SIZES)


def test_a_matrix_beyond_the_limit_of_shared_memory() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2100, 2100), nn.ReLU(), nn.Linear(2100, 40)).eval()
    x = torch.randn(40, 2100)
    with torch.no_grad():
        got = lampwork.compile(model, options={"strict": True})(x)
        want = model.double()(x.double())
    assert (got - want).abs().max() < 1e-4
