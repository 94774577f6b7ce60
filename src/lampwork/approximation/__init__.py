"""Approximations of a model, applied within a budget of error: `lampwork.approximate`, and byte precision:
`lampwork.quantize`."""

from __future__ import annotations

from lampwork.approximation.activations import gelu_to_relu, gelu_to_tanh
from lampwork.approximation.approximate import approximate
from lampwork.approximation.int8 import Int8Linear, int8
from lampwork.approximation.int8_conv import Int8Conv
from lampwork.approximation.metrics import max_relative_difference, top1_disagreement
from lampwork.approximation.norms import ChannelAffine, layer_norm_to_affine
from lampwork.approximation.quantization_report import LayerReport, OutputReport, QuantizationReport
from lampwork.approximation.quantize import quantize
from lampwork.approximation.report import ApproximationReport, Refusal, RuleReport
from lampwork.approximation.rule import ApproximationRule
from lampwork.approximation.statistics import Statistics
from lampwork.approximation.weights import HalfLinear, LowRankLinear, bf16_weights, low_rank

__all__ = [
    "ApproximationReport",
    "ApproximationRule",
    "ChannelAffine",
    "HalfLinear",
    "Int8Conv",
    "Int8Linear",
    "LayerReport",
    "LowRankLinear",
    "OutputReport",
    "QuantizationReport",
    "Refusal",
    "RuleReport",
    "Statistics",
    "approximate",
    "bf16_weights",
    "gelu_to_relu",
    "gelu_to_tanh",
    "int8",
    "layer_norm_to_affine",
    "low_rank",
    "max_relative_difference",
    "quantize",
    "top1_disagreement",
]
