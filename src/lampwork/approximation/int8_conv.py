"""Convolutions with weights of int8."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from lampwork.approximation.int8_numbers import LEAST, MOST, Activations, calibrated_scale, quantized
from lampwork.approximation.statistics import Statistics
from lampwork.verdict import No, Verdict, Yes

_CONVOLVE: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WORD = 4  # numbers of int8 that are multiplied at once
_LEAST_GROUP = 8  # fewer channels of a group are multiplied by other code, in floating point


class Int8Conv(nn.Module):
    """A convolution over one to three dimensions whose weight is int8, one scale for each output:
    y = conv(x, weight * scale) + bias.

    Shapes: weight int8 [out_channels, in_channels / groups, *kernel], scale float32 [out_channels], bias [out_channels]
    or None. They are in `state_dict`; the result has the dtype of x.

    activations: how x is multiplied.
        "dynamic": rounded to int8, by one scale for each image: its largest magnitude is 127.
        "static": rounded to int8, by the one scale `input_scale` (float32 []), which is in `state_dict` too; what is
            larger than 127 of it saturates. A nan is lost.
            No gradient reaches x.
        None: as it is, by the weight widened to its dtype.
    Eager multiplies the rounded numbers as float32, which is exact as long as sums stay below 2^24; compiled, sums are
    int32.
    """

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        like: nn.Conv1d | nn.Conv2d | nn.Conv3d,
        activations: Activations,
        input_scale: Tensor | None = None,
    ) -> None:
        """like: the convolution whose stride, padding, dilation and groups it has."""
        super().__init__()
        self.activations = activations
        self.weight = nn.Buffer(weight)
        self.scale = nn.Buffer(scale)
        self.input_scale = None if input_scale is None else nn.Buffer(input_scale)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.in_channels, self.out_channels = like.in_channels, like.out_channels
        self.kernel_size = like.kernel_size
        self.stride, self.padding, self.dilation = like.stride, like.padding, like.dilation
        self.groups = like.groups

    def forward(self, x: Tensor) -> Tensor:
        rank = self.weight.dim() - 2
        ones = (1,) * rank
        if self.activations is None:
            weight = self.weight.to(x.dtype) * self.scale.to(x.dtype).reshape(-1, 1, *ones)
            return self._convolved(x, weight, self.bias)
        wide = x.detach().float()
        if self.input_scale is not None:
            numbers = (wide * self.input_scale.reciprocal()).round().clamp(-MOST, MOST)
            weight = self.weight.float() * (self.scale * self.input_scale).reshape(-1, 1, *ones)
            bias = None if self.bias is None else self.bias.float()
            return self._convolved(numbers.to(torch.int8).float(), weight, bias).to(x.dtype)
        step = wide.abs().amax(tuple(range(-rank - 1, 0)), keepdim=True).clamp_min(LEAST) / MOST
        numbers = (wide / step).round().to(torch.int8).float()
        y = self._convolved(numbers, self.weight.float() * self.scale.reshape(-1, 1, *ones), None) * step
        return (y if self.bias is None else y + self.bias.reshape(-1, *ones)).to(x.dtype)

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve = _CONVOLVE[self.weight.dim() - 2]
        return convolve(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, "
            f"activations={self.activations!r}"
        )


def is_convolution(module: nn.Module) -> bool:
    """Whether it is one of torch's own; a subclass may do more."""
    if parametrize.is_parametrized(module):
        return parametrize.type_before_parametrizations(module) in _KINDS
    return type(module) in _KINDS


def quantizable(module: nn.Module, activations: Activations) -> Verdict:
    """Of a module that is a convolution."""
    conv = cast(nn.Conv2d, module)
    if parametrize.is_parametrized(module):
        return No("its weight is computed from other parameters")
    weight = conv.weight
    if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return No(f"its weight is {weight.dtype}")
    if not weight.numel():
        return No("its weight is empty")
    if conv.padding_mode != "zeros":
        return No(f"it pads by {conv.padding_mode!r}")
    channels, outputs = weight.shape[1], weight.shape[0] // conv.groups
    if activations is not None and conv.groups > 1 and min(channels, outputs) < _LEAST_GROUP:
        return No(f"groups of {channels} to {outputs} channels are faster in floating point")
    if activations is not None and channels % _WORD:
        return No(f"{channels} channels are no whole words of int8, and are faster in floating point")
    return Yes() if bool(weight.isfinite().all()) else No("its weight has values that are not finite")


def int8_convolution(
    module: nn.Module, activations: Activations, statistics: Statistics | None
) -> nn.Module | No:
    """A quantizable convolution as `Int8Conv`."""
    conv = cast(nn.Conv2d, module)
    input_scale = None
    if activations == "static":
        input_scale = calibrated_scale(statistics)
        if isinstance(input_scale, No):
            return input_scale
    weight, bias = conv.weight.detach(), conv.bias
    numbers, scale = quantized(weight)
    new = Int8Conv(
        numbers.contiguous(),
        scale,
        None if bias is None else bias.detach().clone(),
        conv,
        activations,
        input_scale,
    )
    return new.to(weight.device).requires_grad_(False)
