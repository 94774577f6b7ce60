"""Random convolutions with what follows them, by the template where there is one, against eager in float64."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import INSTRUCTION_SETS
from same import assert_same
from torch import Tensor, nn

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "14"))
_CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "channels": lambda x: torch.cat([x.sin(), x], 1),
}


class _Net(nn.Module):
    """Two convolutions, the second over the first's result, with an activation and maybe a residual sum or a norm."""

    def __init__(self, pick: random.Random) -> None:
        super().__init__()
        self.rank = rank = pick.choice((1, 2, 2, 2, 3))
        channels, self.inputs = self._channels(pick)
        self.first = self._convolution(pick, self.inputs, channels)
        self.norm = nn.BatchNorm2d(channels) if rank == 2 and pick.random() < 0.3 else nn.Identity()
        self.activation = pick.choice(sorted(_ACTIVATIONS))
        self.residual = pick.random() < 0.4
        doubled = channels * (2 if self.activation == "channels" else 1)
        self.second = self._convolution(pick, doubled, pick.choice((1, 7, 16, 24, 48, 65)), groups=1)

    def _channels(self, pick: random.Random) -> tuple[int, int]:
        self.groups = pick.choice((1, 1, 1, 2, 3, 24))
        if self.groups == 24:
            each = pick.choice((1, 1, 2, 4))
            return self.groups * each, self.groups * pick.choice((1, each))
        return self.groups * pick.choice((1, 3, 8, 16, 17, 33, 64)), self.groups * pick.choice(
            (1, 3, 8, 16, 20)
        )

    def _convolution(
        self, pick: random.Random, inputs: int, outputs: int, groups: int | None = None
    ) -> nn.Module:
        def each(*values: int) -> tuple[int, ...]:
            return tuple(pick.choice(values) for _ in range(self.rank))

        padding = "same" if pick.random() < 0.1 else each(0, 1, 1, 2, 3)
        stride = 1 if padding == "same" else each(1, 1, 2, 3)
        return _CONVOLUTIONS[self.rank](
            inputs,
            outputs,
            each(1, 1, 2, 3, 5) if padding != "same" else each(1, 3, 5),
            stride,
            padding,
            each(1, 1, 1, 2),
            self.groups if groups is None else groups,
            bias=pick.random() < 0.7,
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        if self.residual:
            y = y + y.detach().roll(1, 1)
        return self.second(_ACTIVATIONS[self.activation](y))


def _input(pick: random.Random, net: _Net) -> Tensor:
    sizes = [pick.choice((6, 7, 9, 12, 17)) + (0 if net.rank == 3 else 8) for _ in range(net.rank)]
    x = torch.randn(pick.choice((1, 1, 2, 3)), net.inputs, *sizes)
    kind = pick.choice(("rows", "rows", "channels last", "part", "transposed"))
    if kind == "channels last" and net.rank > 1:
        return x.to(memory_format=torch.channels_last if net.rank == 2 else torch.channels_last_3d)
    if kind == "part":
        return torch.randn(x.shape[0], 2 * net.inputs, *[size + 3 for size in sizes])[
            :, ::2, *[slice(1, size + 1) for size in sizes]
        ]
    return x.transpose(-1, 1).contiguous().transpose(-1, 1) if kind == "transposed" else x


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("seed", range(_COUNT))
def test_random_convolutions(seed: int, isa: str) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(20):
        net = _Net(pick).eval()
        x = _input(pick, net)
        try:
            net(x)
        except RuntimeError:
            continue  # a window larger than its input
        break
    else:
        pytest.fail("no convolution fits its input")
    compiled = lampwork.compile(net, options={"isa": isa, "strict": True})
    with torch.no_grad():
        assert_same(net, compiled(x), x)
        x.mul_(-0.5)
        net.first.weight.mul_(1.5)
        assert_same(net, compiled(x), x)
