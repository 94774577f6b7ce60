"""Storages that give up their memory, by `untyped_storage().resize_()`: no hook tells of it; nobody reads beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lampwork
from lampwork.errors import RuntimeFailure

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


class Gathered(torch.nn.Module):
    """Its weight is freed after forward and comes back for backward, unseen by autograd, as under fully_shard."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, self.weight)).square()

    def gradients(self, call: Any, factor: float = 1.0, back: bool = True) -> tuple[torch.Tensor, ...]:
        x = torch.linspace(-1, 1, 64 * 64).reshape(64, 64).requires_grad_()
        loss = call(x).sum()
        content = self.weight.detach().clone()
        self.weight.untyped_storage().resize_(0)
        if back:
            self.bring_back(content * factor)
        try:
            return torch.autograd.grad(loss, (x, self.weight))
        finally:
            self.bring_back(content)

    def bring_back(self, content: torch.Tensor) -> None:
        self.weight.untyped_storage().resize_(content.nbytes)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self.weight):
            self.weight.copy_(content)


def test_weights_that_are_gathered_for_backward_have_a_compiled_one():
    net, before = Gathered(), lampwork.stats()
    compiled, expected = lampwork.compile(net), net.gradients(net)
    for factor in (1, 1, 1, 0.5, 1):
        for a, b in zip(net.gradients(compiled, factor), net.gradients(net, factor), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    for a, b in zip(net.gradients(compiled), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    after = lampwork.stats()
    assert after["compiled_backwards"] - before["compiled_backwards"] == 5
    assert after["eager_backwards"] - before["eager_backwards"] == 1


def test_a_weight_that_is_not_gathered_again_is_refused():
    net = Gathered()
    compiled = lampwork.compile(net)
    for _ in range(3):
        net.gradients(compiled)
    with pytest.raises(RuntimeFailure, match="was freed after forward"):
        net.gradients(compiled, back=False)
    net.gradients(compiled)


def test_a_weight_that_is_given_another_tensors_memory_is_not_gathered():
    """With equal content, then with other: a view of the weight, which eager saves, still sees the old memory."""
    net = Gathered()
    x = torch.linspace(-1, 1, 64 * 64).reshape(64, 64).requires_grad_()

    def gradients(call: Any, factor: float) -> tuple[torch.Tensor, ...]:
        loss, old = call(x).sum(), net.weight.data
        net.weight.data = old * factor
        try:
            return torch.autograd.grad(loss, (x, net.weight))
        finally:
            net.weight.data = old

    compiled = lampwork.compile(net)
    for factor in (1, 1, 1, 0.5):
        for a, b in zip(gradients(compiled, factor), gradients(net, factor), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
