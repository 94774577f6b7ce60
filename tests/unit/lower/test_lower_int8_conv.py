"""Convolutions of int8: what is lowered to products of int8, and that their numbers are those of exact sums."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from children import failure
from instruction_sets import HERE, INSTRUCTION_SETS
from scalar_target import SCALAR, native_on
from test_guarded_memory import Case, check
from test_lower_int8 import bytes_of
from torch import Tensor, nn

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "6"))
_CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Convolution(nn.Module):
    """Rounds its input to int8 by a scale, and convolves it by int8 weights: `weight` (O, C / groups, *kernel)."""

    def __init__(
        self, rank: int, channels: int, outputs: int, kernel: int = 3, groups: int = 1, **how: Any
    ) -> None:
        super().__init__()
        shape = (outputs, channels // groups, *[kernel] * rank)
        self.weight = nn.Buffer(torch.randint(-128, 128, shape, dtype=torch.int8))
        self.scale = nn.Buffer(torch.rand(outputs, *[1] * (rank + 1)) / 64 + 1e-3)
        self.bias = nn.Buffer(torch.randn(outputs))
        self.how = {"groups": groups, **how}
        self.rank = rank

    def forward(self, x: Tensor) -> Tensor:
        numbers = (x * 50).round().clamp(-127, 127).to(torch.int8)
        convolve = _CONVOLVE[self.rank]
        return convolve(numbers.float(), self.weight.float() * self.scale, self.bias, **self.how)

    def exact(self, x: Tensor) -> Tensor:
        """In float64: the sums are exact."""
        numbers = (x * 50).round().clamp(-127, 127).double()
        sums = _CONVOLVE[self.rank](numbers, self.weight.double(), None, **self.how)
        return sums * self.scale.double().squeeze(1) + self.bias.double().reshape(-1, *[1] * self.rank)


def compiled(net: Any, isa: str = "", dynamic: bool | None = None) -> Any:
    return lampwork.compile(net, dynamic=dynamic, options={"strict": True, "isa": isa})


def assert_exact(net: Convolution, got: Tensor, x: Tensor) -> None:
    torch.testing.assert_close(got.double(), net.exact(x), rtol=2e-6, atol=1e-6 * float(got.abs().max()))


SHAPES: dict[str, tuple[Callable[[], Convolution], tuple[int, ...]]] = {
    "padded": (lambda: Convolution(2, 16, 24, padding=1), (2, 16, 7, 9)),
    "by 2": (lambda: Convolution(2, 20, 33, 5, stride=2, padding=2), (1, 20, 12, 11)),
    "dilated": (lambda: Convolution(2, 8, 17, dilation=(2, 1), padding=(2, 0)), (2, 8, 9, 8)),
    "one tap": (lambda: Convolution(2, 36, 64, 1), (2, 36, 5, 5)),
    "one tap by 2": (lambda: Convolution(2, 64, 50, 1, stride=2), (1, 64, 7, 8)),
    "groups": (lambda: Convolution(2, 48, 30, groups=3, padding=1), (2, 48, 6, 6)),
    "more padding than input": (lambda: Convolution(2, 16, 16, padding=3, dilation=3), (1, 16, 1, 2)),
    "one row of results": (lambda: Convolution(2, 16, 16, padding=(0, 1)), (1, 16, 3, 9)),
    "one line, most of it padding": (lambda: Convolution(2, 16, 16, padding=1), (1, 16, 1, 6)),
    "many channels": (lambda: Convolution(2, 1064, 16, 1), (1, 1064, 3, 3)),
    "line": (lambda: Convolution(1, 16, 24, 9, padding=4), (2, 16, 30)),
    "volume": (lambda: Convolution(3, 24, 16, padding=1), (2, 24, 4, 5, 6)),
}


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_sums_are_exact(name: str, isa: str) -> None:
    torch.manual_seed(0)
    make, shape = SHAPES[name]
    net, x = make(), torch.randn(shape)
    ours = compiled(net, isa)
    with torch.no_grad():
        for given in (x, x.to(memory_format=torch.channels_last) if x.dim() == 4 else -x):
            assert_exact(net, ours(given), given)
    assert ours.stages.counts["gemms"] == 1 and ours.stages.counts["ATen calls"] == 0
    assert packed(ours) == ["i8"]


def packed(ours: Any) -> list[str]:
    """The dtypes of weights in panels."""
    return re.findall(r": (\w+)\[[^=]*\] = pack ", str(ours.stages.definitions))


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (Convolution(2, 3, 16), (1, 3, 8, 8)),
        (Convolution(2, 18, 16), (1, 18, 8, 8)),
        (Convolution(2, 32, 32, groups=32), (1, 32, 8, 8)),
        (Convolution(2, 32, 32, groups=8), (1, 32, 8, 8)),
    ],
    ids=["first layer", "no whole words", "depthwise", "groups of 4"],
)
def test_others_are_multiplied_in_float32(net: Convolution, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    ours = compiled(net)
    with torch.no_grad():
        assert_exact(net, ours(x), x)
    assert "i8" not in packed(ours)


def test_a_machine_without_products_of_int8() -> None:
    make, shape = SHAPES["padded"]
    net, x = make(), torch.randn(shape)
    with native_on(SCALAR), torch.no_grad():
        assert_exact(net, lampwork.compile(net)(x), x)


def test_numbers_that_something_else_reads_too() -> None:
    """And weights: they are in float32 for that."""
    net = Convolution(2, 16, 16, padding=1)

    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        numbers = (x * 50).round().clamp(-127, 127).to(torch.int8).float()
        weight = net.weight.float() * net.scale
        return F.conv2d(numbers, weight, net.bias, padding=1), numbers * 2, weight.sum((1, 2, 3))

    x = torch.randn(1, 16, 6, 6)
    ours = compiled(program)
    with torch.no_grad():
        for ours_, theirs in zip(ours(x), program(x), strict=True):
            torch.testing.assert_close(ours_, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "weight",
    [
        lambda net: net.weight.float() + net.scale,
        lambda net: net.weight.float() * net.scale.reshape(1, -1, 1, 1),  # a scale for each input
        lambda net: (net.weight.float() * net.scale).transpose(0, 1),
        lambda net: net.weight.float() * net.scale * 0.5,
        lambda net: net.weight.float() * net.scale.double().float(),
        lambda net: net.weight.float(),
        lambda net: net.weight.flip(0).float()[::2].repeat(2, 1, 1, 1) * net.scale,
    ],
)
def test_other_weights_made_of_bytes(weight: Callable[[Convolution], Tensor]) -> None:
    net = Convolution(2, 16, 16, padding=1)

    def program(x: Tensor) -> Tensor:
        numbers = (x * 50).round().clamp(-127, 127).to(torch.int8).float()
        return F.conv2d(numbers, weight(net), net.bias, padding=1)

    x = torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last)
    with torch.no_grad():
        ours, theirs = compiled(program)(x), program(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def test_a_batch_norm_is_one_more_scale() -> None:
    norm = nn.BatchNorm2d(24)
    norm.running_mean, norm.running_var = torch.randn(24), torch.rand(24) + 0.5
    norm.weight = nn.Parameter(torch.randn(24))
    net = nn.Sequential(Convolution(2, 16, 24, padding=1), norm, nn.ReLU()).eval()
    x = torch.randn(2, 16, 7, 7)
    ours = compiled(net)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), net(x), rtol=1e-5, atol=1e-5 * float(net(x).max()))
    assert packed(ours) == ["i8"] and ours.stages.counts["gemms"] == 1


def test_layers_in_a_row_pass_bytes_on() -> None:
    """Scales, biases, activations and rounding are epilogues: between two products lies int8 alone."""
    net = nn.Sequential(
        *(Convolution(2, 32, 32, padding=1), nn.ReLU(), Convolution(2, 32, 48, 1)),
        *(nn.ReLU(), Convolution(2, 48, 16, stride=2), nn.ReLU()),
    )
    x = torch.randn(1, 32, 9, 9).to(memory_format=torch.channels_last)
    ours = compiled(net)
    with torch.no_grad():
        got, theirs = ours(x), net(x)
    torch.testing.assert_close(got, theirs, rtol=1e-2, atol=2e-2 * float(theirs.max()))
    assert packed(ours) == ["i8"] * 3
    assert ours.stages.counts["kernel calls"] == 4  # the rounding of x is one


def test_any_batch_height_and_width() -> None:
    net = Convolution(2, 16, 24, padding=1, stride=2)
    ours = compiled(net, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 16, 8, 9), (1, 16, 17, 5), (3, 16, 1, 1)):
            x = torch.randn(shape)
            assert_exact(net, ours(x), x)
    assert packed(ours) == ["i8"]


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_nothing_beside_buffers(isa: str, front: bool) -> None:
    table: list[Case] = []
    for size, kernel, groups, padding in ((1, 3, 1, 1), (5, 3, 1, 1), (4, 3, 2, 0), (6, 1, 1, 0)):
        w, scale = bytes_of(17 * groups, 12, kernel, kernel), torch.rand(17 * groups, 1, 1, 1)

        def fn(x: Tensor, w: Tensor, scale: Tensor, groups: int = groups, padding: int = padding) -> Tensor:
            return F.conv2d(x.float(), w.float() * scale, None, 1, padding, 1, groups)

        x = bytes_of(2, 12 * groups, size, size).contiguous(memory_format=torch.channels_last)
        table.append((f"{size} {kernel} {groups}", fn, [x], [w, scale]))
    assert not failure([(case[0], partial(check, case, isa, front=front)) for case in table])


@pytest.mark.parametrize("seed", range(_COUNT))
def test_random_convolutions(seed: int) -> None:
    pick = random.Random(seed)
    torch.manual_seed(seed)
    isa = pick.choice(HERE)
    before = torch.get_num_threads()
    for _ in range(4):
        rank, groups = pick.choice((1, 2, 2, 2, 3)), pick.choice((1, 1, 1, 2, 4))
        channels, outputs = (
            groups * pick.choice((8, 12, 16, 20, 64, 68)),
            groups * pick.choice((8, 9, 16, 31, 50)),
        )
        kernel, gap, pad = pick.choice((1, 2, 3, 3, 5)), pick.choice((1, 1, 2)), pick.choice((0, 1, 2))
        net = Convolution(
            *(rank, channels, outputs, kernel, groups),
            stride=pick.choice((1, 1, 2, 3)),
            padding=pad,
            dilation=gap,
        )
        least = max(1, (kernel - 1) * gap + 1 - 2 * pad)
        x = torch.randn(
            pick.choice((1, 2, 3)), channels, *[least + pick.choice((0, 1, 4, 7)) for _ in range(rank)]
        )
        if rank == 2 and pick.random() < 0.5:
            x = x.to(memory_format=torch.channels_last)
        ours = compiled(net, isa, dynamic=pick.random() < 0.3)
        try:
            torch.set_num_threads(pick.choice((1, 2)))
            with torch.no_grad():
                for given in (x, torch.cat([x, -x])):
                    assert_exact(net, ours(given), given)
        finally:
            torch.set_num_threads(before)
