"""Transposed convolutions as convolutions of their phases."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import HERE, INSTRUCTION_SETS
from same import assert_same
from torch import Tensor, nn

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "8"))
_CONVOLUTIONS: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def compiled(net: Any, isa: str = "", dynamic: bool | None = None) -> Any:
    return lampwork.compile(net, dynamic=dynamic, options={"strict": True, "isa": isa})


# rank, inputs, outputs, kernel, stride, padding, output_padding, groups, bias, dilation
SHAPES = {
    "each element its own": (2, 16, 24, 2, 2, 0),
    "two taps a phase": (2, 16, 17, 4, 2, 1),
    "one tap or two": (2, 16, 16, 3, 2, 1, 1),
    "two taps or three": (2, 16, 8, 5, 2, 2, 1),
    "more than reaches": (2, 9, 16, 6, 2, 3),
    "stride 1": (2, 16, 16, 3, 1, 1),
    "stride 1, cut": (2, 16, 16, 3, 1, 2),
    "stride 1, dilated": (2, 16, 16, 3, 1, 0, 0, 1, True, 2),
    "whole strides of padding": (2, 16, 16, 7, 2, 2, 1),
    "stride 3": (2, 16, 16, 5, 3, 0, 1),
    "sides of their own": (2, 16, 16, (4, 3), (2, 1), (1, 0)),
    "groups": (2, 32, 48, 4, 2, 1, 0, 2),
    "line": (1, 16, 16, 16, 8, 4),
    "volume": (3, 16, 16, 4, 2, 1),
}


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_numbers(name: str, isa: str) -> None:
    rank, *args = SHAPES[name]
    assert isinstance(rank, int)
    net = nn.Sequential(_CONVOLUTIONS[rank](*args), nn.SiLU()).eval()
    x = torch.randn(2, args[0], *(5, 7, 4)[:rank])
    ours = compiled(net, isa)
    with torch.no_grad():
        assert_same(net, ours(x), x)
        net[0].weight.mul_(1.5)
        assert_same(net, ours(x), x)
    assert ours.stages.counts["ATen calls"] == 0 and ours.stages.counts["gemms"] == 1


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["two taps a phase", "one tap or two", "groups", "line"])
def test_halves_are_summed_in_float32(name: str, dtype: torch.dtype, isa: str) -> None:
    rank, *args = SHAPES[name]
    assert isinstance(rank, int)
    net = nn.Sequential(_CONVOLUTIONS[rank](*args), nn.ReLU()).to(dtype).eval()
    x = torch.randn(2, args[0], *(5, 7, 4)[:rank], dtype=dtype)
    ours = compiled(net, isa)
    with torch.no_grad():
        assert_same(net, ours(x), x)
    assert ours.stages.counts["ATen calls"] == 0 and ours.stages.counts["gemms"] == 1


def test_odd_channels_of_bfloat16() -> None:
    net = nn.ConvTranspose2d(9, 16, 4, 2, 1).bfloat16().eval()
    x = torch.randn(1, 9, 5, 6, dtype=torch.bfloat16)
    with torch.no_grad():
        assert_same(net, compiled(net)(x), x)


@pytest.mark.parametrize(
    "args",
    [
        (16, 16, 3, 2, 1),
        (16, 16, 3, 3, 1),
        (16, 16, 1, 2, 0, 1),
        (4, 16, 2, 2),
        (16, 16, 3, 2, 0, 1, 1, True, 2),
    ],
    ids=["phases of other sizes", "other starts", "no tap", "few channels", "stride and dilation"],
)
def test_others_are_calls(args: Any) -> None:
    net = nn.ConvTranspose2d(*args).eval()
    x = torch.randn(1, args[0], 5, 6)
    ours = compiled(net)
    with torch.no_grad():
        assert_same(net, ours(x), x)
    assert ours.stages.counts["gemms"] == 0


def test_short_sums_of_volumes_are_calls() -> None:
    net = nn.ConvTranspose3d(16, 16, 2, 2).eval()
    x = torch.randn(1, 16, 3, 4, 5)
    ours = compiled(net)
    with torch.no_grad():
        assert_same(net, ours(x), x)
    assert ours.stages.counts["gemms"] == 0


def test_what_follows_is_computed_in_the_tile() -> None:
    """An activation and a residual sum, in channels-last order."""
    net = nn.ConvTranspose2d(16, 16, 4, 2, 1).eval()

    def program(x: Tensor, y: Tensor) -> Tensor:
        return F.relu(net(x)) + y

    x = torch.randn(1, 16, 5, 6).to(memory_format=torch.channels_last)
    y = torch.randn(1, 16, 10, 12).to(memory_format=torch.channels_last)
    ours = compiled(program)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, y), program(x, y), rtol=1e-4, atol=1e-4)
    assert ours.stages.counts["kernel calls"] == 1


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_only_what_is_read_is_not_finite(kernel: int) -> None:
    """A tap that a phase lacks is not multiplied by zero."""
    net = nn.ConvTranspose2d(16, 16, kernel, 2, kernel // 2 if kernel > 2 else 0, kernel % 2).eval()
    x = torch.randn(1, 16, 6, 5)
    x[0, 3, 2, 2], x[0, 1, 5, 4] = float("nan"), float("inf")
    with torch.no_grad():
        ours, theirs = compiled(net)(x), net(x)
    assert torch.equal(ours.isfinite(), theirs.isfinite())


def test_any_batch_height_and_width() -> None:
    net = nn.Sequential(
        nn.ConvTranspose2d(16, 24, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(24, 8, 2, 2)
    ).eval()
    ours = compiled(net, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 16, 4, 5), (1, 16, 7, 3), (3, 16, 2, 9)):
            x = torch.randn(shape)
            assert_same(net, ours(x), x)
    assert len(ours.entries) <= 2


def _network(pick: random.Random) -> tuple[nn.Module, Tensor]:
    rank, groups = pick.choice((1, 2, 2, 2, 3)), pick.choice((1, 1, 1, 2))

    def each(*values: int) -> tuple[int, ...]:
        return tuple(pick.choice(values) for _ in range(rank))

    strides, paddings = each(1, 2, 2, 2, 4), []
    for stride in strides:
        paddings.append(pick.choice((0, stride // 2, stride)))
    kernels = tuple(
        max(stride, kernel) for stride, kernel in zip(strides, each(1, 2, 3, 4, 5, 6), strict=True)
    )
    inputs = groups * pick.choice((8, 11, 16, 33))
    # Most outputs are whole strides long.
    extra = tuple(
        (2 * padding - kernel) % stride if pick.random() < 0.8 else pick.randrange(stride)
        for stride, padding, kernel in zip(strides, paddings, kernels, strict=True)
    )
    layer = _CONVOLUTIONS[rank](
        inputs,
        groups * pick.choice((8, 9, 16, 24, 50)),
        kernels,
        strides,
        tuple(paddings),
        extra,
        groups,
        bias=pick.random() < 0.7,
    )
    x = torch.randn(pick.choice((1, 2, 3)), inputs, *each(2, 3, 5, 7))
    if pick.random() < 0.4 and rank > 1:
        x = x.to(memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d)
    return nn.Sequential(layer, pick.choice((nn.Identity, nn.ReLU, nn.SiLU))()).eval(), x


@pytest.mark.parametrize("seed", range(_COUNT))
def test_random_transposed_convolutions(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    isa = pick.choice(HERE)
    for _ in range(4):
        net, x = _network(pick)
        if pick.random() < 0.3:
            net, x = net.bfloat16(), x.bfloat16()
        ours = compiled(net, isa, dynamic=pick.random() < 0.3)
        with torch.no_grad():
            try:
                empty = not net(x).numel()
            except RuntimeError:
                empty = True
            if empty:
                continue
            for given in (x, torch.cat([x, -x])):
                assert_same(net, ours(given), given)
