"""Convolutions and pooling in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lampwork.backends.onnx.builder import Builder, NotConvertible, Value
from lampwork.backends.onnx.call import Call
from lampwork.backends.onnx.registry import Rules
from lampwork.backends.onnx.rules_pointwise import need_float
from lampwork.transforms.convolution import convolution as read_convolution

rules = Rules()


@rules.converts(
    "conv1d",
    "conv2d",
    "conv3d",
    "conv1d.padding",
    "conv2d.padding",
    "conv3d.padding",
    "convolution",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
)
def conv(g: Builder, call: Call, x: Value, weight: Value, *rest: Any) -> str:
    found = read_convolution(call.node)
    if found is None or not found.batched:
        raise NotConvertible("padding that differs on two sides, or no batch")
    need_float(x)
    names = [x.name, weight.name]
    if found.bias is not None:
        names.append(g.name_of(found.bias))
    attributes: dict[str, Any] = {
        "strides": found.stride,
        "pads": [*found.padding, *found.padding],
        "dilations": found.dilation,
        "group": found.groups,
    }
    if not found.transposed:
        return g.op("Conv", *names, **attributes)
    attributes["output_padding"] = [
        size - ((n - 1) * s - 2 * p + d * (k - 1) + 1)
        for size, n, s, p, d, k in zip(
            call.shape[2:],
            x.shape[2:],
            found.stride,
            found.padding,
            found.dilation,
            weight.shape[2:],
            strict=True,
        )
    ]
    return g.op("ConvTranspose", *names, **attributes)


def _full(value: int | Sequence[int], rank: int) -> list[int]:
    items = [value] if isinstance(value, int) else list(value)
    return items * rank if len(items) == 1 else items


def _windows(call: Call, x: Value, kernel: Any, stride: Any, padding: Any, ceil: bool) -> dict[str, Any]:
    """The attributes that all poolings have."""
    need_float(x)
    rank = 1 if "1d" in str(call.node.target) else 3 if "3d" in str(call.node.target) else 2
    if x.rank != rank + 2 or ceil:
        raise NotConvertible("no batch, or sizes rounded up")
    sizes, pads = _full(kernel, rank), _full(padding, rank)
    return {
        "kernel_shape": sizes,
        "strides": _full(stride, rank) if stride else sizes,
        "pads": [*pads, *pads],
    }


@rules.converts("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    g: Builder,
    call: Call,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> str:
    windows = _windows(call, x, kernel, stride, padding, ceil)
    return g.op("MaxPool", x.name, **windows, dilations=_full(dilation, x.rank - 2))


@rules.converts("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    g: Builder,
    call: Call,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> str:
    if divisor is not None:
        raise NotConvertible("another divisor")
    windows = _windows(call, x, kernel, stride, padding, ceil)
    return g.op("AveragePool", x.name, **windows, count_include_pad=int(count_include_pad))


@rules.converts("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(g: Builder, call: Call, x: Value, size: Any) -> str:
    need_float(x)
    rank = len(size)
    if x.rank != rank + 2:
        raise NotConvertible("no batch")
    inner, outer = x.shape[2:], call.shape[2:]
    if all(n == 1 for n in outer):
        return g.op("GlobalAveragePool", x.name)
    if any(n % m for n, m in zip(inner, outer, strict=True)):
        raise NotConvertible("windows of several sizes")
    window = [n // m for n, m in zip(inner, outer, strict=True)]
    if all(n == 1 for n in window):
        return g.op("Identity", x.name)
    return g.op("AveragePool", x.name, kernel_shape=window, strides=window)
