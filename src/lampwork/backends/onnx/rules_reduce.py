"""Reductions, softmax and normalization in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lampwork import pristine
from lampwork.backends.onnx.builder import Builder, NotConvertible, Value, element_type
from lampwork.backends.onnx.call import Call
from lampwork.backends.onnx.registry import Rules
from lampwork.backends.onnx.rules_pointwise import need_float

rules = Rules()


def _axes(x: Value, dims: Any) -> list[int]:
    if dims is None or (isinstance(dims, list) and not dims):
        return list(range(x.rank))
    return [d % max(x.rank, 1) for d in (dims if isinstance(dims, list) else [dims])]


def _reduce(g: Builder, kind: str, name: str, x: Value, dims: Any, keepdim: bool) -> str:
    axes = _axes(x, dims)
    if not x.rank:
        return g.op("Identity", name)
    return g.op(kind, name, g.ints(axes), keepdims=int(keepdim))


@rules.converts("mean.dim", "mean")
def mean(g: Builder, call: Call, x: Value, dims: Any = None, keepdim: Any = False, dtype: Any = None) -> str:
    if not isinstance(keepdim, bool) or isinstance(dims, torch.dtype):
        dims, keepdim = None, False  # the overload without dimensions
    need_float(x)
    return _reduce(g, "ReduceMean", x.as_type(call.dtype), x, dims, keepdim)


@rules.converts("sum.dim_IntList", "sum")
def sum_(g: Builder, call: Call, x: Value, dims: Any = None, keepdim: Any = False, dtype: Any = None) -> str:
    if not isinstance(keepdim, bool) or isinstance(dims, torch.dtype):
        dims, keepdim = None, False
    return _reduce(g, "ReduceSum", x.as_type(call.dtype), x, dims, keepdim)


@rules.converts("amax")
def amax(g: Builder, call: Call, x: Value, dims: Any = (), keepdim: bool = False) -> str:
    return _reduce(g, "ReduceMax", x.name, x, dims, keepdim)


@rules.converts("amin")
def amin(g: Builder, call: Call, x: Value, dims: Any = (), keepdim: bool = False) -> str:
    return _reduce(g, "ReduceMin", x.name, x, dims, keepdim)


@rules.converts("softmax.int", "_softmax")
def softmax(g: Builder, call: Call, x: Value, dim: int, *rest: Any) -> str:
    need_float(x)
    if not x.rank:
        raise NotConvertible("a softmax of one number")
    return g.op("Softmax", x.as_type(call.dtype), axis=dim % x.rank)


@rules.converts("log_softmax.int", "_log_softmax")
def log_softmax(g: Builder, call: Call, x: Value, dim: int, *rest: Any) -> str:
    need_float(x)
    if not x.rank:
        raise NotConvertible("a softmax of one number")
    return g.op("LogSoftmax", x.as_type(call.dtype), axis=dim % x.rank)


@rules.converts("layer_norm")
def layer_norm(
    g: Builder,
    call: Call,
    x: Value,
    shape: Sequence[int],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn: bool = False,
) -> str:
    need_float(x)
    scale = weight.name if weight is not None else g.tensor(pristine.ones(list(shape), dtype=x.dtype))
    offset = bias.name if bias is not None else ""
    return g.op("LayerNormalization", x.name, scale, offset, axis=-len(shape), epsilon=float(eps))


@rules.converts("rms_norm")
def rms_norm(
    g: Builder, call: Call, x: Value, shape: Sequence[int], weight: Value | None = None, eps: Any = None
) -> str:
    need_float(x)
    # Of the type that eager computes in: half types are widened.
    wide = pristine.promote_types(x.dtype, torch.float32)
    small = torch.finfo(wide).eps if eps is None else float(eps)
    axes = g.ints(list(range(-len(shape), 0)))
    square = g.op("ReduceMean", g.op("Mul", x.name, x.name), axes, keepdims=1)
    root = g.op("Sqrt", g.op("Add", square, g.scalar(small, x.dtype)))
    normal = g.op("Mul", x.name, g.op("Reciprocal", root))
    return normal if weight is None else g.op("Mul", normal, weight.name)


@rules.converts("batch_norm")
def batch_norm(
    g: Builder,
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool,
) -> str:
    need_float(x)
    if training or mean is None or var is None or x.rank < 2:
        raise NotConvertible("statistics of the batch")
    ones = pristine.ones([x.shape[1]], dtype=x.dtype)
    scale = weight.name if weight is not None else g.tensor(ones)
    offset = bias.name if bias is not None else g.tensor(pristine.zeros_like(ones))
    return g.op("BatchNormalization", x.name, scale, offset, mean.name, var.name, epsilon=float(eps))


@rules.converts("group_norm")
def group_norm(
    g: Builder,
    call: Call,
    x: Value,
    groups: int,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> str:
    """Instance normalization of each group's elements, then scale and offset of each channel."""
    need_float(x)
    batch, channels = x.shape[:2]
    rows = g.reshape(x.name, [batch, groups, -1])
    unit = pristine.ones([groups], dtype=x.dtype)
    normal = g.op(
        "InstanceNormalization", rows, g.tensor(unit), g.tensor(pristine.zeros_like(unit)), epsilon=float(eps)
    )
    result = g.reshape(normal, x.shape)
    column = [channels] + [1] * (x.rank - 2)
    if weight is not None:
        result = g.op("Mul", result, g.reshape(weight.name, column))
    if bias is not None:
        result = g.op("Add", result, g.reshape(bias.name, column))
    return result


@rules.converts("argmax", "argmin")
def argmax(g: Builder, call: Call, x: Value, dim: int | None = None, keepdim: bool = False) -> str:
    if dim is None or not x.rank:
        raise NotConvertible("an argmax over all elements")
    kind = "ArgMin" if "argmin" in str(call.node.target) else "ArgMax"
    return g.op(kind, x.name, axis=dim % x.rank, keepdims=int(keepdim))


@rules.converts("cumsum")
def cumsum(g: Builder, call: Call, x: Value, dim: int, dtype: Any = None) -> str:
    element_type(call.dtype)
    if not x.rank:
        raise NotConvertible("a sum of one number")
    return g.op("CumSum", x.as_type(call.dtype), g.scalar(dim % x.rank, torch.int64))
