"""Gradients that are larger than what they are computed from come last in a backward."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import lampwork


@pytest.fixture(autouse=True)
def reset():
    lampwork.reset_stats()


def network() -> nn.Module:
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(
        *convolutions, nn.Flatten(), nn.Linear(8 * 12 * 12, 256), nn.ReLU(), nn.Linear(256, 3)
    )


def trained(net: nn.Module, x: torch.Tensor):
    compiled = lampwork.compile(net, options={"strict": True})
    for _ in range(2):
        net.zero_grad()
        compiled(x).square().sum().backward()
    return compiled.stages


def order(text: str) -> list[str]:
    """The products and gradients of convolutions of a backward, by name of the operator."""
    return re.findall(r"= aten\.(mm|convolution_backward)\.default", text)


def test_products_of_a_few_rows_come_after_the_activations() -> None:
    torch.manual_seed(0)
    net, x = network(), torch.randn(2, 3, 12, 12)
    exact = copy.deepcopy(net).double()
    exact(x.double()).square().sum().backward()
    stages = trained(net, x)
    for p, q in zip(net.parameters(), exact.parameters()):
        torch.testing.assert_close(p.grad, q.grad.float(), rtol=1e-4, atol=1e-4)
        assert p.grad.stride() == q.grad.stride()
    # The gradient of the last layer's input, its weight's, which is small; then that of the first layer's input.
    assert order(stages.backward) == ["mm", "mm", "mm", "convolution_backward", "convolution_backward", "mm"]
    gradients = sum(p.numel() for p in net.parameters()) * 4
    assert stages.counts["estimated peak bytes"] < 1.1 * gradients


def test_products_of_many_rows_stay() -> None:
    torch.manual_seed(0)
    backward = trained(network(), torch.randn(256, 3, 12, 12)).backward
    assert order(backward) == ["mm", "mm", "mm", "mm", "convolution_backward", "convolution_backward"]


def test_a_weight_that_two_layers_share_is_added_up_where_it_was() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(96, 96), torch.randn(2, 96)
    exact, net = copy.deepcopy(layer).double(), layer
    exact(exact(x.double()).tanh()).square().sum().backward()
    compiled = lampwork.compile(lambda x: net(net(x).tanh()), options={"strict": True})
    for _ in range(2):
        net.zero_grad()
        compiled(x).square().sum().backward()
    for p, q in zip(net.parameters(), exact.parameters()):
        torch.testing.assert_close(p.grad, q.grad.float(), rtol=1e-4, atol=1e-4)
