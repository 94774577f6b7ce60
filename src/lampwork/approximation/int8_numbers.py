"""Numbers of int8 and their scales, as all layers of int8 have them: symmetric, one scale for each output."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lampwork import pristine
from lampwork.approximation.statistics import Statistics
from lampwork.verdict import No

Activations = Literal["dynamic", "static"] | None

MOST = 127
"""Symmetric: -128 is not used, so that a number and its negative are equally exact."""

LEAST = torch.finfo(torch.float32).tiny
"""A row of zeros has a scale, too."""


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(int8, scale) of a weight [outputs, ...]: each output by its own scale, rounded to nearest even."""
    wide = weight.detach().float()
    scale = wide.flatten(1).abs().amax(1).clamp_min(LEAST) / MOST
    return (wide / scale.reshape(-1, *[1] * (wide.dim() - 1))).round().to(torch.int8), scale


def calibrated_scale(statistics: Statistics | None) -> Tensor | No:
    """The scale of what reaches a layer, by the largest magnitude that calibration showed."""
    if statistics is None or not statistics.calls:
        return No("the calibration inputs do not reach it")
    if not statistics.input_peak < torch.inf:
        return No("calibration inputs reach it that are not finite")
    return pristine.tensor(max(statistics.input_peak, LEAST * MOST) / MOST)
