"""Which order the tensors around 1 x 1 convolutions have."""

from __future__ import annotations

import os
import random

import pytest
import torch
import torch.nn.functional as F
from instruction_sets import INSTRUCTION_SETS
from scalar_target import native_on, target_named
from torch import Tensor, nn

import lampwork

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "8"))


def compiled(model: nn.Module, x: Tensor, **options: str) -> dict[str, int]:
    """The counts of a compiled module, which is held to float64 and to eager's strides."""
    model.eval()
    made = lampwork.compile(model, options=options)
    with torch.no_grad():
        got, expected = made(x), model(x)
        exact = model.double()(x.double())
        model.float()
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    error, theirs = ((each - exact).abs().max() for each in (got, expected))
    assert error <= 2 * theirs + 1e-5 * exact.abs().max()
    return made.stages.counts


@pytest.mark.parametrize("shape", [(1, 16, 56, 56), (3, 8, 7, 9), (2, 24, 100), (1, 6, 4, 5, 6)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_lone_convolution_takes_row_major_tensors_as_they_are(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    kind = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[len(shape)]
    counts = compiled(kind(shape[1], 32, 1, bias=bias), torch.randn(*shape))
    assert counts["layout conversions"] == 0
    assert counts["kernel calls"] == 1
    assert counts["ATen calls"] == 0


def test_channels_last_tensors_stay_so() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 16, 20, 20).to(memory_format=torch.channels_last)
    assert compiled(nn.Conv2d(16, 32, 1), x)["layout conversions"] == 0


def test_few_pixels_are_too_few_columns() -> None:
    torch.manual_seed(0)
    counts = compiled(nn.Conv2d(512, 512, 1), torch.randn(1, 512, 7, 7))
    assert counts["layout conversions"] == 2


def test_between_other_convolutions_it_is_channels_last() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 1), nn.ReLU(), nn.Conv2d(32, 8, 3)
    )
    counts = compiled(model, torch.randn(1, 3, 64, 64))
    assert counts["layout conversions"] == 2  # of the input and of the result


def test_the_last_one_of_a_decoder_writes_what_the_caller_wants() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 64, 1))
    x = torch.randn(1, 8, 32, 32)
    kept = compiled(model, x, passes="-choose-layouts")
    # The 16 channels are put in order, by the product itself, instead of the 64.
    assert kept["layout conversions"] == 2
    assert compiled(model, x)["layout conversions"] == 1
    narrow = nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 4, 1))
    assert compiled(narrow, x)["layout conversions"] == 2


def test_what_is_not_one_product_stays() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 16, 20, 20)
    for conv in (
        nn.Conv2d(16, 8, 1, stride=2),
        nn.Conv2d(16, 8, 1, padding=1),
        nn.Conv2d(16, 32, 1, groups=2),
    ):
        assert compiled(conv, x)["layout conversions"] >= 1


def test_open_sizes_stay() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(8, 16, 1)
    made = lampwork.compile(model, dynamic=True)
    with torch.no_grad():
        for size in (5, 9, 30):
            x = torch.randn(2, 8, size, size + 1)
            torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)


def test_nan_and_inf_are_eager_s() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(4, 5, 1)
    x = torch.randn(1, 4, 6, 6)
    x[0, 0, 0, 0], x[0, 1, 2, 3], x[0, 2, 5, 5] = torch.nan, torch.inf, -torch.inf
    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(model)(x), model(x), equal_nan=True)


class Drawn(nn.Module):
    """Convolutions with one tap or more, norms, skips, reshapes and upsampling, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.steps: list[tuple[str, int]] = []
        self.parts = nn.ModuleList()
        channels = 8
        for _ in range(draw.randint(2, 9)):
            kind = draw.choice(["one", "one", "one", "three", "norm", "relu", "skip", "permute", "up", "cat"])
            if kind in ("one", "three"):
                wide = draw.choice([4, 8, 16, 48])
                tap = 1 if kind == "one" else 3
                self.parts.append(nn.Conv2d(channels, wide, tap, padding=tap // 2, bias=draw.random() < 0.7))
                channels = wide
            elif kind == "norm":
                self.parts.append(draw.choice([nn.BatchNorm2d(channels), nn.GroupNorm(2, channels)]))
            elif kind == "skip":
                self.parts.append(nn.Conv2d(channels, channels, 1))
            elif kind == "cat":
                self.parts.append(nn.Conv2d(channels, 8, 1))
                channels += 8
            else:
                self.steps.append((kind, -1))
                continue
            self.steps.append((kind, len(self.parts) - 1))
        self.end = draw.choice(["same", "flat", "tokens", "mean"])

    def forward(self, x: Tensor) -> Tensor:
        for kind, number in self.steps:
            if kind == "relu":
                x = x.relu()
            elif kind == "permute":
                x = F.layer_norm(x.permute(0, 2, 3, 1), x.shape[1:2]).permute(0, 3, 1, 2)
            elif kind == "up":
                x = F.interpolate(x[..., :4, :4], scale_factor=2)
            elif kind == "skip":
                x = x + self.parts[number](x)
            elif kind == "cat":
                x = torch.cat([x, self.parts[number](x)], 1)
            else:
                x = self.parts[number](x)
        if self.end == "flat":
            return x.flatten(1)
        if self.end == "tokens":
            return x.flatten(2).transpose(1, 2) * 2
        return x.mean((2, 3)) if self.end == "mean" else x


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
def test_a_random_network(isa: str, seed: int) -> None:
    draw = random.Random(seed)
    x = torch.randn(draw.randint(1, 2), 8, draw.choice([4, 9, 16]), draw.choice([4, 11, 16]))
    if draw.random() < 0.3:
        x = x.to(memory_format=torch.channels_last)
    with native_on(target_named(isa)):
        compiled(Drawn(seed), x)
