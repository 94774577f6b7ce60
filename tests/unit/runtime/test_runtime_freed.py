"""Storages that give up their memory, by `untyped_storage().resize_()`: no hook tells of it; nobody reads beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lampwork

WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "freed": lambda x: x.untyped_storage().resize_(0),
    "smaller": lambda x: x.untyped_storage().resize_(16),
    "larger": lambda x: x.untyped_storage().resize_(2 * x.nbytes),
    "freed, with a pointer": lambda x: x.untyped_storage().resize_(0).data_ptr(),
    "smaller, with a pointer": lambda x: x.untyped_storage().resize_(16).data_ptr(),
    "freed and back": lambda x: x.untyped_storage().resize_(0).resize_(x.nbytes),
    "freed, back and written": lambda x: x.untyped_storage().resize_(0).resize_(x.nbytes).fill_(1),
    "shared": lambda x: x.share_memory_(),
    "written and freed": lambda x: x.data.fill_(3).untyped_storage().resize_(0),
}
MAKERS: dict[str, Callable[[int], torch.Tensor]] = {
    "torch's": lambda n: torch.ones(n, n),
    "a result's": lambda n: lampwork.compile(lambda x: torch.ones(n, n) + x)(torch.zeros(n, n)),
    "a slice's": lambda n: torch.ones(n + 1, n)[1:],
}


def saves_what_it_makes(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x).sin().cos().exp() * p).sin().tanh().sum()


def needs_no_value(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return (x + p.sin() + p.cos().exp().tanh() + p.sigmoid()).sum()


@pytest.mark.parametrize("n", [16, 256])
@pytest.mark.parametrize("function", [saves_what_it_makes, needs_no_value])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_backward_knows_what_freed_memory_held(way, make, function, n):
    def gradients(f: Any, repeat: int) -> torch.Tensor:
        p = torch.full((n, n), 0.5, requires_grad=True)
        for _ in range(repeat):
            p.grad = None
            x = make(n)
            loss = f(x, p)
            way(x)
            loss.backward()
        assert p.grad is not None
        return p.grad

    assert torch.equal(gradients(lampwork.compile(function), 3), gradients(function, 1))


def test_two_calls_share_what_freed_memory_held():
    x, p = torch.ones(256, 256), torch.full((256, 256), 0.5, requires_grad=True)
    f = lampwork.compile(saves_what_it_makes)
    f(x, p).backward()
    losses = [f(x, p), f(x, p)]
    expected = p.grad
    x.untyped_storage().resize_(0)
    for loss in losses:
        p.grad = None
        loss.backward()
        assert torch.equal(p.grad, expected)
    del losses, loss


@pytest.mark.parametrize("which", [0, 1], ids=["input", "weight"])
def test_freed_tensors_are_refused_as_in_eager_until_they_have_memory_again(which):
    w, x = torch.ones(64, 64), torch.ones(64, 64)
    f = lampwork.compile(lambda x: torch.tanh(x @ w))
    for _ in range(2):
        f(x)
    storage = (x, w)[which].untyped_storage()
    storage.resize_(0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="data is not allocated"):
            f(x)
    storage.resize_(64 * 64 * 4)
    (x, w)[which].fill_(0.5)
    torch.testing.assert_close(f(x), torch.tanh(x @ w))
    assert len(f.entries) == 1
