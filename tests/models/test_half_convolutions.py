"""Convolutions of bfloat16 and float16 inside of compiled functions."""

from __future__ import annotations

import os
import random

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import INSTRUCTION_SETS
from same import flatten, widened
from scalar_target import native_on, target_named
from torch import Tensor, nn

import lampwork

HALVES = (torch.bfloat16, torch.float16)
STRICT = {"strict": True}
_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "8"))


def assert_no_worse(fn: nn.Module, got: Tensor, x: Tensor) -> None:
    """The error of `got` against float64 is at most eager's, but for what single roundings of a few numbers make."""
    eager, (exact,) = fn(x), flatten(widened(fn)(widened(x)))
    assert (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride())
    errors = [float((each.double() - exact).square().mean().sqrt()) for each in (got, eager)]
    scale = float(exact.square().mean().sqrt())
    assert errors[0] <= 1.1 * errors[1] + 1e-4 * scale, (errors, scale)


class Block(nn.Module):
    """A convolution, maybe a norm, maybe a sum, an activation, and a convolution of its result."""

    def __init__(self, pick: random.Random, dtype: torch.dtype) -> None:
        super().__init__()
        self.inputs = pick.choice((1, 3, 4, 16, 17, 24, 40))
        middle = pick.choice((1, 3, 16, 31, 48, 65))
        self.first = nn.Conv2d(
            self.inputs,
            middle,
            (pick.choice((1, 2, 3)), pick.choice((1, 3, 5))),
            pick.choice((1, 1, 2)),
            pick.choice((0, 1, 2)),
            pick.choice((1, 1, 2)),
            bias=pick.random() < 0.6,
        )
        self.norm = nn.BatchNorm2d(middle) if pick.random() < 0.5 else nn.Identity()
        if isinstance(self.norm, nn.BatchNorm2d):
            nn.init.normal_(self.norm.running_mean)
            nn.init.uniform_(self.norm.running_var, 0.3, 3.0)
            nn.init.normal_(self.norm.weight)
        self.activation = pick.choice((nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.Identity()))
        self.residual = pick.random() < 0.4
        self.second = nn.Conv2d(middle, pick.choice((2, 7, 16, 33)), pick.choice((1, 3)), padding=1)
        self.to(dtype).eval()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        if self.residual:
            y = y + y.detach().flip(1)
        return self.second(self.activation(y))


@pytest.mark.parametrize("isa", ["scalar", *INSTRUCTION_SETS])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("seed", range(_COUNT))
@torch.no_grad()
def test_random_convolutions(seed: int, dtype: torch.dtype, isa: str) -> None:
    pick = random.Random(f"{seed} {dtype} {isa}")
    torch.manual_seed(seed)
    net = Block(pick, dtype)
    x = torch.randn(
        pick.choice((1, 2)), net.inputs, pick.choice((7, 12, 15)), pick.choice((9, 11, 17)), dtype=dtype
    )
    if pick.random() < 0.5:
        x = x.to(memory_format=torch.channels_last)
    with native_on(target_named(isa)):
        compiled = lampwork.compile(net, options=STRICT)
        assert_no_worse(net, compiled(x), x)
        net.first.weight.mul_(-1.5)
        assert_no_worse(net, compiled(x), x)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("channels", "groups"), [(32, 2), (34, 2), (51, 3), (32, 32), (1, 1), (8200, 1)])
@torch.no_grad()
def test_channels_and_groups(channels: int, groups: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(channels, 2 * groups, 3, padding=1, groups=groups).to(dtype).eval()
    x = torch.randn(2, channels, 4, 5).to(dtype)
    assert_no_worse(net, lampwork.compile(net, options=STRICT)(x), x)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rank", [1, 3])
@torch.no_grad()
def test_other_dimensions(rank: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    kind = nn.Conv1d if rank == 1 else nn.Conv3d
    net = nn.Sequential(kind(5, 20, 3, padding=1), nn.ReLU(), kind(20, 9, 2, 2)).to(dtype).eval()
    x = torch.randn(2, 5, *([20] if rank == 1 else [5, 6, 7])).to(dtype)
    assert_no_worse(net, lampwork.compile(net, options=STRICT)(x), x)


@pytest.mark.parametrize("dtype", HALVES)
@torch.no_grad()
def test_nan_and_infinity_reach_what_eager_lets_them_reach(dtype: torch.dtype) -> None:
    """The first layer's padding, and the channel that is added to an odd number, are zeros times zeros."""
    torch.manual_seed(0)
    for channels in (3, 17):
        net = nn.Sequential(nn.Conv2d(channels, 9, 3, padding=1), nn.ReLU()).to(dtype).eval()
        compiled = lampwork.compile(net, options=STRICT)
        for value in (float("nan"), float("inf"), -float("inf")):
            x = torch.randn(1, channels, 9, 10).to(dtype)
            x[0, 1, 3, 4] = value
            x[0, channels - 1, 8, 9] = value
            found, exact = compiled(x), F.relu(F.conv2d(x.double(), *_wide(net[0]), padding=1))
            assert torch.equal(found.isnan(), exact.isnan()) and torch.equal(found.isinf(), exact.isinf())


def _wide(layer: nn.Conv2d) -> tuple[Tensor, Tensor]:
    assert layer.bias is not None
    return layer.weight.double(), layer.bias.double()


@pytest.mark.parametrize("dtype", HALVES)
@torch.no_grad()
def test_open_sizes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = (
        nn.Sequential(nn.Conv2d(3, 18, 3, 2, 1), nn.ReLU(), nn.Conv2d(18, 20, 3, padding=1)).to(dtype).eval()
    )
    compiled = lampwork.compile(net, dynamic=True, options=STRICT)
    for batch, size in ((1, 9), (2, 12), (3, 31)):
        x = torch.randn(batch, 3, size, size + 1).to(dtype)
        assert_no_worse(net, compiled(x), x)


@torch.no_grad()
def test_a_norm_takes_the_sum_unrounded_only_behind_its_convolution() -> None:
    """bf16: a sum of 257 is 256 after rounding; minus a mean of 256 it is 1 before."""
    net = (
        nn.Sequential(nn.Conv2d(2, 1, 1, bias=False), nn.BatchNorm2d(1, eps=0.0, affine=False))
        .bfloat16()
        .eval()
    )
    net[0].weight.fill_(1.0)
    net[1].running_mean.fill_(256.0)
    x = torch.tensor([256.0, 1.0]).bfloat16().reshape(1, 2, 1, 1)
    assert float(lampwork.compile(net, options=STRICT)(x)) == 1.0

    def shown(x: Tensor) -> tuple[Tensor, Tensor]:
        y = net[0](x)
        return y, net[1](y)

    y, z = lampwork.compile(shown, options=STRICT)(x)
    assert float(y) == 256.0 and float(z) in (0.0, 1.0)
