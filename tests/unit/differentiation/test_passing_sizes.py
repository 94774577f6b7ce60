"""A region whose sizes differ from call to call is trained without running forward twice for sizes that come once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import lampwork


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.LayerNorm(24), nn.Tanh(), nn.Linear(24, 5))


def _gradients(net: nn.Module, loss: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))]


def test_new_sizes_run_forward_once() -> None:
    net = _net()
    compiled = lampwork.compile(lambda x: net(x).square().mean())
    exact = _net().double()
    exact.load_state_dict(net.state_dict())
    for rows in range(3, 9):
        _gradients(net, compiled(torch.randn(rows, 12)))
    before = lampwork.stats()
    for rows in range(20, 26):
        x = torch.randn(rows, 12)
        ours = _gradients(net, compiled(x))
        for got, want in zip(ours, _gradients(exact, exact(x.double()).square().mean()), strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    after = lampwork.stats()
    assert after["eager_backwards"] == before["eager_backwards"]
    assert after["eager_calls"] == before["eager_calls"]


def test_sizes_that_come_back_are_compiled() -> None:
    net = _net()
    compiled = lampwork.compile(lambda x: net(x).square().mean())
    for rows in range(3, 9):
        _gradients(net, compiled(torch.randn(rows, 12)))
    for _ in range(3):
        _gradients(net, compiled(torch.randn(30, 12)))
    before = lampwork.stats()["compiled_backwards"]
    x = torch.randn(30, 12)
    ours = _gradients(net, compiled(x))
    assert lampwork.stats()["compiled_backwards"] == before + 1
    torch.testing.assert_close(ours, _gradients(net, net(x).square().mean()), rtol=1e-4, atol=1e-5)
