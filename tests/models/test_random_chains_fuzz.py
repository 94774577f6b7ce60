"""Random numbers inside of random models: compiled, they are eager's, forward and backward, whatever the layouts.

A failure prints the model. `LAMPWORK_FUZZ=n` tries n / 10 models.
"""

from __future__ import annotations

import copy
import os
from random import Random

import pytest
import torch
from random_chains import random_chain
from torch import Tensor, nn

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "40")) // 10
_FIRST = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))


@pytest.mark.parametrize("seed", range(_FIRST, _FIRST + _COUNT))
def test_the_same_numbers_are_drawn(seed: int) -> None:
    rng = Random(seed)
    torch.manual_seed(seed)
    model, x = random_chain(rng)
    twin = copy.deepcopy(model)
    compiled = lampwork.compile(twin)
    writes = rng.random() < 0.5
    for number in range(2):
        draw = seed + number
        with torch.no_grad():
            _same(_forward(model, x, draw), _forward(compiled, x, draw), f"call {number} of {model}")
        want, have = (_train(m, f, x, draw, writes) for m, f in ((model, model), (twin, compiled)))
        _same(want, have, f"training {number} (p.data written: {writes}) of {model}")


def _forward(function: nn.Module, x: Tensor, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    return [function(x), torch.get_rng_state()]


def _train(model: nn.Module, function: nn.Module, x: Tensor, seed: int, writes: bool) -> list[Tensor]:
    """The result, the generator after forward and after backward, gradients and buffers. `writes`: weights are written
    in between, of which autograd learns nothing."""
    torch.manual_seed(seed)
    leaf = x.detach().clone().requires_grad_()
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    result = function(leaf)
    drawn = torch.get_rng_state()
    if writes:
        for parameter in parameters:
            parameter.data.mul_(1.01)
    result.cos().sum().backward()
    gradients = [p.grad for p in (leaf, *parameters) if p.grad is not None]
    buffers = [b.clone() for b in model.buffers()]
    return [result.detach(), drawn, torch.get_rng_state(), *gradients, *buffers]


def _same(want: list[Tensor], have: list[Tensor], where: str) -> None:
    assert len(want) == len(have), where
    for number, (a, b) in enumerate(zip(want, have, strict=True)):
        what = f"value {number}, {where}"
        assert a.stride() == b.stride(), what
        if a.dtype is torch.float32:
            torch.testing.assert_close(
                b, a, rtol=1e-3, atol=1e-3 * (1 + a.abs().max().item()), msg=lambda m: f"{m}\n{what}"
            )
        else:
            assert torch.equal(a, b), what
