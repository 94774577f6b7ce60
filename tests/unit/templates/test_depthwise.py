"""Depthwise convolutions and those in groups of few channels: numbers, borders, tails, sharing of functions."""

from __future__ import annotations

import copy
import os
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import HERE, INSTRUCTION_SETS
from same import assert_same
from scalar_target import SCALAR_TILES, native_on
from torch import Tensor, nn

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "8"))
_CONVOLUTIONS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    *(lambda x: x, torch.relu, F.relu6, F.silu, F.hardswish, F.gelu),
    lambda x: x + x.sum(1, keepdim=True),
)


def compiled(net: Any, isa: str = "", dynamic: bool | None = None, **options: str) -> Any:
    return lampwork.compile(net, dynamic=dynamic, options={"strict": True, "isa": isa, **options})


def layer(channels: int, kernel: int, *args: Any, **kwargs: Any) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, kernel, *args, groups=channels, **kwargs).eval()


SHAPES = {
    "3 x 3": (layer(32, 3, padding=1), (1, 32, 14, 14)),
    "5 x 5 by 2": (layer(24, 5, 2, 2), (2, 24, 15, 13)),
    "7 x 7": (layer(20, 7, padding=3), (1, 20, 9, 16)),
    "dilated": (layer(19, 3, 1, 2, 2), (2, 19, 9, 11)),
    "strides and dilations": (layer(17, 3, (2, 3), (1, 3), (3, 2)), (1, 17, 14, 23)),
    "one tap": (layer(48, 1), (2, 48, 5, 5)),
    "a window as large as its input": (layer(33, 3), (1, 33, 3, 3)),
    "more padding than input": (layer(16, 3, padding=3), (1, 16, 1, 2)),
    "two filters each": (nn.Conv2d(6, 12, 3, padding=1, groups=6), (2, 6, 9, 9)),
    "many filters each": (nn.Conv2d(5, 160, 3, padding=1, groups=5), (2, 5, 7, 9)),
    "three filters each": (nn.Conv2d(7, 21, 3, padding=1, groups=7), (2, 7, 9, 9)),
    "ten filters for 2 each": (nn.Conv2d(8, 40, 3, 2, groups=4), (1, 8, 9, 11)),
    "groups of 2": (nn.Conv2d(22, 22, 3, padding=1, groups=11), (2, 22, 9, 9)),
    "groups of 4": (nn.Conv2d(12, 12, 3, 2, 1, groups=3), (2, 12, 10, 10)),
    "groups of 4 to 2": (nn.Conv2d(36, 18, 3, groups=9), (1, 36, 8, 8)),
    "groups of 2 to 1": (nn.Conv2d(40, 20, 3, padding=1, groups=20), (2, 40, 9, 9)),
    "line": (nn.Conv1d(33, 33, 9, padding=4, groups=33), (2, 33, 40)),
    "volume": (nn.Conv3d(18, 18, 3, (1, 2, 1), 1, groups=18), (1, 18, 5, 6, 7)),
    "double": (layer(13, 3, padding=1).double(), (1, 13, 8, 8)),
}


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_numbers(name: str, isa: str) -> None:
    net, shape = SHAPES[name]
    x = torch.randn(shape, dtype=net.weight.dtype)
    ours = compiled(net, isa=isa)
    with torch.no_grad():
        assert_same(net, ours(x), x)
    assert ours.stages.counts["ATen calls"] == 0 and ours.stages.counts["gemms"] == 1


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["3 x 3", "5 x 5 by 2", "dilated", "groups of 4 to 2", "line"])
def test_halves_are_summed_in_float32(name: str, dtype: torch.dtype, isa: str) -> None:
    net, shape = SHAPES[name]
    net = nn.Sequential(copy.deepcopy(net), nn.ReLU6()).to(dtype)
    x = torch.randn(shape, dtype=dtype)
    ours = compiled(net, isa=isa)
    with torch.no_grad():
        assert_same(net, ours(x), x)
    assert ours.stages.counts["ATen calls"] == 0 and ours.stages.counts["gemms"] == 1


def test_volumes_of_halves() -> None:
    """By eager's order: bfloat16 is oneDNN's, float16 is not."""
    for dtype in (torch.bfloat16, torch.float16):
        net = copy.deepcopy(SHAPES["volume"][0]).to(dtype)
        x = torch.randn(SHAPES["volume"][1], dtype=dtype)
        with torch.no_grad():
            assert_same(net, compiled(net)(x), x)


@pytest.mark.parametrize("name", ["3 x 3", "groups of 2", "two filters each"])
def test_a_machine_without_vectors(name: str) -> None:
    net, shape = SHAPES[name]
    x = torch.randn(shape)
    with native_on(SCALAR_TILES), torch.no_grad():
        ours = compiled(net)
        assert_same(net, ours(x), x)
    assert ours.stages.counts["ATen calls"] == 0


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_layers_share_their_function(isa: str) -> None:
    """Of one kernel and stride, whatever their channels and sizes."""
    first = nn.Sequential(layer(32, 3, padding=1), nn.ReLU6(), nn.Conv2d(32, 64, 1)).eval()
    counts: list[str] = []
    more = nn.Sequential(first, layer(64, 3, padding=1), nn.ReLU6(), nn.Conv2d(64, 64, 1)).eval()
    for net in (first, more):
        x = torch.randn(1, 32, 14, 21)
        ours = compiled(net, isa=isa, passes="-choose-layouts")
        with torch.no_grad():
            assert_same(net, ours(x), x)
        counts += re.findall(r"(\d+) distinct functions", ours.stages.summary())
    assert len(counts) == 2 and counts[0] == counts[1]


def test_no_nan_is_lost_and_zeros_of_the_padding_are_zeros() -> None:
    net = nn.Sequential(layer(17, 3, padding=1), nn.ReLU6()).eval()
    x = torch.randn(2, 17, 9, 7)
    x[0, 3, 4, 4] = float("nan")
    x[1, 2, 0, 0] = float("inf")
    with torch.no_grad():
        ours, theirs = compiled(net)(x), net(x)
    assert torch.equal(ours.isnan(), theirs.isnan())


def test_any_batch_height_and_width() -> None:
    net = nn.Sequential(layer(24, 3, 2, 1), nn.SiLU(), layer(24, 5, padding=2), nn.Hardswish()).eval()
    ours = compiled(net, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 24, 20, 30), (1, 24, 33, 17), (5, 24, 8, 8), (3, 24, 64, 20)):
            x = torch.randn(shape)
            assert_same(net, ours(x), x)
    assert len(ours.entries) <= 2
    assert ours.stages.counts["ATen calls"] == 0


def test_threads_share_lines_and_columns() -> None:
    net = layer(80, 3, padding=1)
    x = torch.randn(2, 80, 19, 23)
    before = torch.get_num_threads()
    ours = compiled(net)
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            with torch.no_grad():
                assert_same(net, ours(x), x)
    finally:
        torch.set_num_threads(before)


class _Net(nn.Module):
    """A convolution in groups of few channels, with what may follow it."""

    def __init__(self, pick: random.Random) -> None:
        super().__init__()
        self.rank = rank = pick.choice((1, 2, 2, 2, 3))
        groups, inputs = pick.choice((2, 3, 5, 8, 16, 17, 24, 33, 40)), pick.choice((1, 1, 1, 1, 2, 3, 4))
        outputs = pick.choice((1, 1, 1, 1, 2, 3, 4, 5, 8, 16, 32) if inputs == 1 else (1, 2, 4, 6, 7, 8, 16))
        self.inputs = groups * inputs

        def each(*values: int) -> tuple[int, ...]:
            return tuple(pick.choice(values) for _ in range(rank))

        self.convolution = _CONVOLUTIONS[rank](
            groups * inputs,
            groups * outputs,
            each(1, 2, 3, 3, 5, 7),
            each(1, 1, 2, 3),
            each(0, 1, 1, 2, 3),
            each(1, 1, 1, 2),
            groups,
            bias=pick.random() < 0.7,
        )
        self.activation = pick.choice(_ACTIVATIONS)
        self.residual = pick.random() < 0.3

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        return self.activation(y + y.roll(1, 1) if self.residual else y)


def _input(pick: random.Random, net: _Net) -> Tensor:
    rank, channels, images = net.rank, net.inputs, pick.choice((1, 1, 2, 3))
    sizes = [
        pick.choice((1, 2, 3, 5, 7, 9, 12, 15)) + (0 if rank == 3 else pick.choice((0, 8)))
        for _ in range(rank)
    ]
    kind = pick.choice(("rows", "channels last", "part", "some channels"))
    if kind == "channels last":
        return torch.randn(images, *sizes, channels).movedim(-1, 1)
    if kind == "some channels":
        whole = torch.randn(images, *[size + 2 for size in sizes], channels + 5).movedim(-1, 1)
        return whole[:, 3:-2, *[slice(1, -1)] * rank]
    if kind == "part":
        whole = torch.randn(images, 2 * channels, *[size + 3 for size in sizes])
        return whole[:, ::2, *[slice(1, size + 1) for size in sizes]]
    return torch.randn(images, channels, *sizes)


@pytest.mark.parametrize("seed", range(_COUNT))
def test_random_depthwise_convolutions(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    isa = pick.choice(HERE)
    for _ in range(4):
        net = _Net(pick).eval()
        x = _input(pick, net)
        if any(
            (size - 1) * gap + 1 > there + 2 * pad
            for size, gap, there, pad in zip(
                net.convolution.kernel_size,
                net.convolution.dilation,
                x.shape[2:],
                net.convolution.padding,
                strict=True,
            )
        ):
            continue  # a window larger than its input
        if pick.random() < 0.3:
            net, x = net.bfloat16(), x.bfloat16()
        ours = compiled(net, isa=isa, dynamic=pick.random() < 0.3)
        with torch.no_grad():
            for given in (x, torch.cat([x, -x])):
                assert_same(net, ours(given), given)
