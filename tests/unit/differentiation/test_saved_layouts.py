"""What forward saves for backward stays in the strides in which the compiled forward leaves it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lampwork
from lampwork.backends.native import compile as native
from lampwork.compiled import training
from lampwork.runtime.program import CallKernel


class Shown(nn.Module):
    """The caller gets what is saved, too, and a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3)

    def forward(self, x):
        h = self.first(x).tanh()
        return self.second(h).square().mean(), h.detach(), h.detach()[:, 1:]


class Scaled(nn.Module):
    """A gradient is what is saved, times the gradient of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale = nn.Conv2d(16, 16, 3), nn.Parameter(torch.randn(1, 16, 1, 1))

    def forward(self, x):
        return (self.first(x) * self.scale).sum()


def pools() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.Dropout2d(0.2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


NETWORKS = {"pools": (pools, 3), "shown": (Shown, 16), "scaled": (Scaled, 16)}


def loss_of(result):
    result = result[0] if isinstance(result, tuple) else result
    return result if result.dim() == 0 else F.cross_entropy(result, torch.arange(result.shape[0]) % 3)


@pytest.fixture
def halves(monkeypatch):
    """The divided graphs of what is compiled."""
    found = []
    plain = training.lay_out_saved

    def spy(each, results, infer):
        plain(each, results, infer)
        found.append(each)

    monkeypatch.setattr(training, "lay_out_saved", spy)
    return found


@pytest.mark.parametrize("size", [23, 32])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("name", NETWORKS)
def test_saved_images_are_read_as_they_were_computed(name, batch, size, halves) -> None:
    make, channels = NETWORKS[name]
    torch.manual_seed(size)
    x = torch.randn(batch, channels, size, size)
    net = make().train()
    loss_of(net(x))  # materializes lazy layers
    exact = copy.deepcopy(net).double()
    compiled = lampwork.compile(net)
    for _ in range(3):
        for each in (net, exact):
            each.zero_grad()
        torch.manual_seed(7)
        result = compiled(x)
        loss_of(result).backward()
    torch.manual_seed(7)
    if name == "pools":  # dropout draws other numbers in float64
        wanted = copy.deepcopy(net)
        wanted.zero_grad()
        loss_of(wanted(x)).backward()
    else:
        wanted = exact
        results = wanted(x.double())
        loss_of(results).backward()
        if isinstance(result, tuple):
            for ours, theirs in zip(result, results, strict=True):
                assert ours.stride() == theirs.stride()
                torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(net.parameters(), wanted.parameters(), strict=True):
        assert ours.grad.stride() == theirs.grad.stride()
        torch.testing.assert_close(ours.grad.double(), theirs.grad.double(), rtol=1e-3, atol=1e-4)
    half = halves[-1]
    output = next(iter(reversed(half.forward.nodes)))
    saved = [node.meta["val"] for node in output.args[0][output.meta["n_shown"] :]]
    for backward in half.backwards.values():
        placeholders = [node for node in backward.graph.nodes if node.op == "placeholder"]
        for node, given in zip(placeholders, backward.inputs, strict=True):
            if given.kind == "saved":
                assert node.meta["val"].strides == saved[given.number].strides
    images = [spec for spec in saved if len(spec.shape) == 4 and spec.shape[-1] > 1]
    if name != "shown":
        assert images
        assert all(spec.strides[1] == 1 for spec in images)


@pytest.mark.parametrize("normed", [True, False])
def test_the_gradient_of_the_first_convolution_is_put_in_the_order_of_its_images(normed, monkeypatch) -> None:
    names = []
    plain = native.compile_program

    def spy(*given):
        program = plain(*given)
        names.extend(each.name for each in program.instructions if isinstance(each, CallKernel))
        return program

    monkeypatch.setattr(native, "compile_program", spy)
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(16) if normed else nn.Identity()
    net = nn.Sequential(nn.Conv2d(3, 16, 5, 2, bias=not normed), norm, nn.Tanh(), nn.Conv2d(16, 16, 3))
    exact = copy.deepcopy(net).double()
    x = torch.randn(2, 3, 31, 29)
    compiled = lampwork.compile(lambda x: net(x).square().mean())
    for _ in range(2):
        net.zero_grad()
        compiled(x).backward()
    exact(x.double()).square().mean().backward()
    for ours, theirs in zip(net.parameters(), exact.parameters(), strict=True):
        assert ours.grad.stride() == theirs.grad.stride()
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-6)
    assert any(name.endswith("_rows") for name in names)
