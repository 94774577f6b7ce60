"""lampwork.quantize of convolutions: the layers, what stays as it is, reports, compiled networks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lampwork
from lampwork.approximation import Int8Conv
from lampwork.errors import OptionError

SCHEMES = ("dynamic", "static", None)
_CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class Block(nn.Module):
    """A residual block with a depthwise convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(2 * channels)
        self.depthwise = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.last = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.last(F.relu6(self.depthwise(F.relu(self.norm(self.first(x)))))))


def build() -> nn.Sequential:
    torch.manual_seed(0)
    stem, head = nn.Conv2d(3, 16, 3, 2, 1), nn.Linear(16, 10)
    return nn.Sequential(stem, nn.ReLU(), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head).eval()


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 16, 12, generator=torch.Generator().manual_seed(1))


def layer(conv: nn.Module, scheme: str | None, x: Tensor) -> Int8Conv:
    made = lampwork.quantize(nn.Sequential(conv), x, activations=scheme).model[0]  # type: ignore[arg-type,index]
    assert isinstance(made, Int8Conv)
    return made


def exact(conv: Int8Conv, x: Tensor) -> Tensor:
    """What the layer computes, in float64 but for the rounding of x."""
    rank = conv.weight.dim() - 2
    numbers, step = x.double(), torch.ones(())
    if conv.activations is not None:
        step = conv.input_scale
        if step is None:
            step = x.float().abs().amax(tuple(range(-rank - 1, 0)), keepdim=True) / 127
            numbers = (x.float() / step).round().double()
        else:
            numbers = (x.float() * step.reciprocal()).round().clamp(-127, 127).double()
    ones = [1] * rank
    weight = conv.weight.double() * conv.scale.double().reshape(-1, 1, *ones)
    y = _CONVOLVE[rank](numbers, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups)
    return y * step.double() + (0 if conv.bias is None else conv.bias.double().reshape(-1, *ones))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (nn.Conv2d(16, 24, 3, padding=1), (2, 16, 9, 7)),
        (nn.Conv2d(32, 32, 3, 2, dilation=2, groups=2, bias=False), (1, 32, 11, 9)),
        (nn.Conv2d(16, 24, (3, 2), padding="same"), (2, 16, 9, 7)),
        (nn.Conv2d(16, 24, 1), (16, 5, 6)),
        (nn.Conv1d(8, 24, 5), (2, 8, 20)),
        (nn.Conv3d(8, 16, 3, padding=1), (2, 8, 4, 5, 6)),
    ],
    ids=["2d", "groups", "same", "without a batch", "1d", "3d"],
)
def test_a_layer_computes_what_it_says(scheme: str | None, conv: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    made = layer(copy.deepcopy(conv), scheme, x)
    wanted = exact(made, x)
    with torch.no_grad():
        for got in (made(x), lampwork.compile(made)(x)):
            torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
        error = (wanted - copy.deepcopy(conv).double()(x.double())).abs().max() / wanted.abs().max()
    assert error < 0.03


def test_half_types_and_padding_of_words() -> None:
    x = torch.randn(1, 16, 8, 8).bfloat16()
    made = layer(nn.Conv2d(16, 16, 3).bfloat16(), "dynamic", x)
    assert made(x).dtype is torch.bfloat16 and made.bias is not None and made.bias.dtype is torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(lampwork.compile(made)(x), made(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_report_lists_convolutions(scheme: str | None) -> None:
    model, x = build(), images()
    before = model(x)
    report = lampwork.quantize(model, x, activations=scheme)  # type: ignore[arg-type]
    names, refused = {each.name for each in report.layers}, {no.name: no.reason for no in report.refused}
    inner = {"2.first", "2.last", "5"}
    assert names == (inner if scheme is not None else {*inner, "0", "2.depthwise"})
    if scheme is not None:
        assert "3 channels" in refused["0"] and "groups of 1 to 1" in refused["2.depthwise"]
    assert all(each.cosine > 0.999 for each in report.layers)
    assert report.output is not None and report.output.cosine > 0.99
    ours = lampwork.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x), rtol=2e-2, atol=2e-2)
    report.undo()
    assert torch.equal(model(x), before)


def test_saving_and_loading() -> None:
    model, x = build(), images()
    lampwork.quantize(model, x, activations="static")
    other = build()
    lampwork.quantize(other, images() * 3, activations="static")
    other.load_state_dict(model.state_dict())
    assert other(x).equal(model(x))


def test_images_have_scales_of_their_own() -> None:
    x = torch.randn(2, 16, 6, 6)
    x[1] *= 1000
    made = layer(nn.Conv2d(16, 16, 3), "dynamic", x)
    torch.testing.assert_close(made(x)[:1], made(x[:1]))
    x[1, 0, 0, 0] = float("nan")
    assert made(x)[0].isfinite().all() and made(x)[1].isnan().all()


def test_others_stay_as_they_are() -> None:
    circular = nn.Conv2d(16, 16, 3, padding=1, padding_mode="circular")
    for conv, reason in ((circular, "'circular'"), (nn.Conv2d(16, 16, 3).double(), "torch.float64")):
        with pytest.raises(OptionError) as raised:
            lampwork.quantize(nn.Sequential(conv))
        assert reason in str(raised.value)

    class Own(nn.Conv2d):
        pass

    with pytest.raises(OptionError, match="no linear layer or convolution"):
        lampwork.quantize(nn.Sequential(Own(16, 16, 3)))
    weight = nn.utils.parametrizations.weight_norm(nn.Conv2d(16, 16, 3))
    with pytest.raises(OptionError, match="computed from other parameters"):
        lampwork.quantize(nn.Sequential(weight))
