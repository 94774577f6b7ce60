"""Steps that eager takes over find what they would have found: nothing was copied, written or allowed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import lampwork

WRAPS: list[Callable[[Any], Any]] = [lambda step: step, lampwork.compile]


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW, optim.Adagrad, optim.SGD])
def test_parameters_with_gaps_under_eagers_fused_kernels(kind: Any) -> None:
    """Which walk over memory, gaps included, so that a gradient must not be laid out like them."""
    options = {"momentum": 0.9} if kind is optim.SGD else {}
    seen: list[Any] = []
    for wrap in WRAPS:
        base = torch.ones(6, 3, dtype=torch.float64)
        param = nn.Parameter(base[::2])
        optimizer = kind([param], lr=0.1, fused=True, **options)
        optimizer.step = wrap(optimizer.step)
        for step in range(3):
            param.grad = torch.full((3, 3), 1.0 + step, dtype=torch.float64)
            optimizer.step()
        states = [value for value in optimizer.state[param].values() if value is not None]
        seen.append([base, *states])
    torch.testing.assert_close(seen[1], seen[0])


def test_a_differentiable_step_of_leaves_is_eagers_error() -> None:
    param = nn.Parameter(torch.ones(3))
    optimizer = optim.SGD([param], lr=0.1, differentiable=True)
    optimizer.step = lampwork.compile(optimizer.step)
    param.grad = torch.ones(3)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        optimizer.step()
    assert torch.equal(param.detach(), torch.ones(3))


def test_a_hook_that_returns_nonsense_is_told_of_by_the_step_it_is_on() -> None:
    param = nn.Parameter(torch.ones(3))
    optimizer = optim.RMSprop([param])
    optimizer.step = lampwork.compile(optimizer.step)
    optimizer.register_step_pre_hook(lambda *args: [])
    with pytest.raises(RuntimeError, match=r"<function RMSprop\.step"):
        optimizer.step()
