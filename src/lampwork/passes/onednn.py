"""Shapes and layouts of the oneDNN ops that passes put into graphs (torch's own rules for them import sympy)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec


def channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense [N, C, H, W] tensor whose channels lie side by side."""
    _, c, h, w = shape
    return (h * w * c, 1, w * c, c)


def _packed_weight(args: Sequence[Any]) -> TensorSpec:
    """The spec of the weight as written: the packed one is opaque."""
    return cast(TensorSpec, args[0].meta["val"])


def _convolved(x: fx.Node, args: Sequence[Any]) -> TensorSpec:
    """args: weight, bias, padding, stride, dilation, ...  The result is channels-last whatever the input is."""
    source = cast(TensorSpec, x.meta["val"])
    weight, _, padding, stride, dilation = args[:5]
    kernel = weight.meta["val"].shape
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(source.shape[2:], padding, dilation, kernel[2:], stride, strict=True)
    ]
    shape = (source.shape[0], kernel[0], *sizes)
    return TensorSpec(shape, channels_last_strides(shape), source.dtype, source.device)


@lru_cache(maxsize=1)
def onednn_rules() -> Mapping[Any, Callable[[Sequence[Any]], TensorSpec]]:
    """Op -> rule from the arguments (nodes for tensors) to the spec of the result."""
    ops = torch.ops.mkldnn
    return {
        ops._reorder_convolution_weight.default: _packed_weight,
        ops._convolution_pointwise.default: lambda args: _convolved(args[0], args[1:]),
        ops._convolution_pointwise.binary: lambda args: _convolved(args[0], args[2:]),
    }
