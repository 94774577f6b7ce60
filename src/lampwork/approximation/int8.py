"""Linear layers with weights of int8, and the rule for all layers that have such."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lampwork.approximation.int8_conv import int8_convolution, is_convolution, quantizable
from lampwork.approximation.int8_numbers import LEAST, MOST, Activations, calibrated_scale, quantized
from lampwork.approximation.statistics import Statistics
from lampwork.approximation.weights import plain_linear, weights_of
from lampwork.errors import OptionError
from lampwork.records import record
from lampwork.verdict import No, Verdict, Yes


class Int8Linear(nn.Module):
    """A linear layer whose weight is int8, one scale for each output: y = x @ (weight * scale).T + bias.

    Shapes: weight int8 [out_features, in_features], scale float32 [out_features], bias [out_features] or None. They are
    in `state_dict`; the result has the dtype of x, and sums are float32.

    activations: how x is multiplied.
        "dynamic": as int8, by one scale for each row: its largest magnitude is 127. Sums of products are exact integers
            (`torch._int_mm`).
        "static": as int8, by the one scale `input_scale` (float32 []), which is in `state_dict` too; what is larger
            than 127 of it saturates.
            No gradient reaches x.
        None: as it is, by the weight widened to its dtype: a quarter of the memory of float32, and of its traffic.
    """

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        activations: Activations,
        input_scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.activations = activations
        self.weight = nn.Buffer(weight)
        self.scale = nn.Buffer(scale)
        self.input_scale = None if input_scale is None else nn.Buffer(input_scale)
        self.bias = None if bias is None else nn.Parameter(bias)

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        if self.activations is None:
            y = F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
            return y if self.bias is None else y + self.bias
        rows = x.detach().reshape(-1, self.in_features).float()
        if self.input_scale is None:
            step = rows.abs().amax(1, keepdim=True).clamp_min(LEAST) / MOST
            numbers = (rows / step).round()
        else:
            step = self.input_scale
            numbers = (rows / step).round().clamp(-MOST, MOST)
        # Rows whose strides are those of a copy: oneDNN leaves the result unwritten where others are of no importance,
        # as that between single rows is.
        left = numbers.to(torch.int8, memory_format=torch.contiguous_format)
        sums = torch.ops.aten._int_mm(left, self.weight.t())
        y = sums.float() * step * self.scale
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"activations={self.activations!r}"
        )


@record
class Int8:
    """Keep the weights of linear layers and convolutions in int8, with one scale for each output.

    before:  y = x @ W.T + b
    after:   y = (int8(x / s) @ int8(W / t[:, None]).T) * s * t + b       s for each row of x, or one that is calibrated
             y = (x @ int8(W / t[:, None]).T) * t + b                     with activations=None
    Of a convolution likewise; s is one for each image then.
    """

    activations: Activations = "dynamic"

    @property
    def name(self) -> str:
        return f"int8-{self.activations or 'weights'}"

    @property
    def calibrated(self) -> bool:
        return self.activations == "static"

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        if is_convolution(module):
            return quantizable(module, self.activations)
        verdict = plain_linear(module)
        if not verdict:
            return verdict
        weight = module.get_parameter("weight")
        if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return No(f"its weight is {weight.dtype}")
        if not weight.numel():
            return No("its weight is empty")
        if self.activations is not None and _inputs(module) == 1:
            return No("it has one input, and eager's product of int8 is wrong for a depth of 1")
        return Yes() if bool(weight.isfinite().all()) else No("its weight has values that are not finite")

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module | No:
        if is_convolution(module):
            return int8_convolution(module, self.activations, statistics)
        weight, bias = weights_of(module)
        input_scale = None
        if self.activations == "static":
            input_scale = calibrated_scale(statistics)
            if isinstance(input_scale, No):
                return input_scale
        numbers, scale = quantized(weight)
        new = Int8Linear(
            numbers.contiguous(), scale, None if bias is None else bias.clone(), self.activations, input_scale
        )
        return new.to(weight.device).requires_grad_(False)


def _inputs(module: nn.Module) -> int:
    return weights_of(module)[0].shape[1]


def int8(activations: Activations = "dynamic") -> Int8:
    """The rule Int8.

    Raises:
        OptionError: other `activations`.
    """
    if activations not in ("dynamic", "static", None):
        raise OptionError(
            f"activations is {activations!r}", fix='pass "dynamic", "static" or None (weights only)'
        )
    return Int8(activations)
