"""Shapes and layouts of the oneDNN operators that passes put into graphs (torch's own rules for them import sympy)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lampwork.graph.shapes_common import ShapeError
from lampwork.graph.spec import TensorSpec


def channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense [N, C, H, W] tensor whose channels lie side by side."""
    _, c, h, w = shape
    return (h * w * c, 1, w * c, c)


def _packed_weight(weight: TensorSpec, *args: Any) -> TensorSpec:
    """The spec of the weight as written: the packed one is opaque."""
    return weight


def _convolved(
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    *args: Any,
) -> TensorSpec:
    """The result is channels-last whatever the input is."""
    kernel = weight.shape
    if len(x.shape) != 4 or len(kernel) != 4:
        raise ShapeError(f"oneDNN's convolution of {x} by {weight}")
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(x.shape[2:], padding, dilation, kernel[2:], stride, strict=True)
    ]
    shape = (x.shape[0], kernel[0], *sizes)
    return TensorSpec(shape, channels_last_strides(shape), x.dtype, x.device)


def _convolved_and_combined(x: TensorSpec, other: TensorSpec, *args: Any) -> TensorSpec:
    """`other` is what is added to the convolution."""
    return _convolved(x, *args)


def onednn_rules() -> Mapping[Any, Callable[..., TensorSpec]]:
    """Operator -> rule. A function, since torch fills the namespace `mkldnn` when it is first asked for."""
    ops = torch.ops.mkldnn
    return {
        ops._reorder_convolution_weight.default: _packed_weight,
        ops._convolution_pointwise.default: _convolved,
        ops._convolution_pointwise.binary: _convolved_and_combined,
    }
