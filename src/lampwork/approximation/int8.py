"""Linear layers with weights of int8."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lampwork.approximation.statistics import Statistics
from lampwork.approximation.weights import plain_linear, weights_of
from lampwork.errors import OptionError
from lampwork.records import record
from lampwork.verdict import No, Verdict, Yes

Activations = Literal["dynamic", "static"] | None

_MOST = 127  # symmetric: -128 is not used, so that a number and its negative are equally exact
_LEAST = torch.finfo(torch.float32).tiny  # a row of zeros has a scale, too


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
            step = rows.abs().amax(1, keepdim=True).clamp_min(_LEAST) / _MOST
            numbers = (rows / step).round()
        else:
            step = self.input_scale
            numbers = (rows / step).round().clamp(-_MOST, _MOST)
        sums = torch.ops.aten._int_mm(numbers.to(torch.int8), self.weight.t())
        y = sums.float() * step * self.scale
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype).reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"activations={self.activations!r}"
        )


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(int8, scale) of a weight [out_features, in_features]: each row by its own scale, rounded to nearest even."""
    wide = weight.detach().float()
    scale = wide.abs().amax(1).clamp_min(_LEAST) / _MOST
    return (wide / scale[:, None]).round().to(torch.int8), scale


@record
class Int8:
    """Keep the weights of linear layers in int8, with one scale for each output.

    before:  y = x @ W.T + b
    after:   y = (int8(x / s) @ int8(W / t[:, None]).T) * s * t + b       s for each row of x, or one that is calibrated
             y = (x @ int8(W / t[:, None]).T) * t + b                     with activations=None
    """

    activations: Activations = "dynamic"

    @property
    def name(self) -> str:
        return f"int8-{self.activations or 'weights'}"

    @property
    def calibrated(self) -> bool:
        return self.activations == "static"

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        verdict = plain_linear(module)
        if not verdict:
            return verdict
        weight = module.get_parameter("weight")
        if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return No(f"its weight is {weight.dtype}")
        if not weight.numel():
            return No("its weight is empty")
        return Yes() if bool(weight.isfinite().all()) else No("its weight has values that are not finite")

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module | No:
        weight, bias = weights_of(module)
        input_scale = None
        if self.activations == "static":
            if statistics is None or not statistics.calls:
                return No("the calibration inputs do not reach it")
            if not statistics.input_peak < torch.inf:
                return No("calibration inputs reach it that are not finite")
            input_scale = torch.tensor(max(statistics.input_peak, _LEAST * _MOST) / _MOST)
        numbers, scale = quantized(weight)
        new = Int8Linear(
            numbers.contiguous(), scale, None if bias is None else bias.clone(), self.activations, input_scale
        )
        return new.to(weight.device).requires_grad_(False)


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
