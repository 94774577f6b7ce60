"""Layer norm by a scale and a shift per channel, as batch norm has when it is evaluated."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from lampwork import pristine
from lampwork.approximation.statistics import Statistics
from lampwork.records import record
from lampwork.swapping.sites import class_of
from lampwork.verdict import No, Verdict, Yes


class ChannelAffine(nn.Module):
    """x * weight + bias, with one weight and one bias for each channel (the last axis of x). Both are parameters."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def extra_repr(self) -> str:
        return str(self.weight.numel())


@record
class LayerNormToAffine:
    """Replace layer norms over one axis by the scale and shift that come nearest to them, by least squares for each
    channel, on the calibration inputs. Both can be folded into the weights of a linear layer behind.

    before:  y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta
    after:   y = x * a + b,  a = cov(x, y) / var(x),  b = E[y] - a * E[x]
    """

    name: str = "layer-norm-to-affine"
    sequential: bool = True

    def applies(self, name: str, module: nn.Module) -> Verdict | bool:
        if class_of(module) is not nn.LayerNorm or not isinstance(module, nn.LayerNorm):
            return False
        if len(module.normalized_shape) != 1:
            return No(f"it normalizes {len(module.normalized_shape)} axes")
        return Yes()

    def replace(self, module: nn.Module, statistics: Statistics | None) -> nn.Module | No:
        if statistics is None or statistics.covariance is None:
            return No("the calibration inputs do not reach it")
        variance, covariance = statistics.input_variance, statistics.covariance
        scale = pristine.where(variance > 0, covariance / variance, 0.0)
        shift = statistics.output_mean - scale * statistics.input_mean
        weight = cast("Tensor | None", module.weight)  # None without elementwise_affine
        dtype = torch.float32 if weight is None else weight.dtype
        new = ChannelAffine(scale.to(dtype), shift.to(dtype))
        return new.requires_grad_(weight is None or weight.requires_grad)


layer_norm_to_affine = LayerNormToAffine()
