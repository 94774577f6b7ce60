"""Shapes of the operators that networks are made of: products, convolutions, pools, norms, attention, embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lampwork.graph.shapes_common import ShapeError, broadcast, like
from lampwork.graph.spec import TensorSpec

aten = torch.ops.aten


def linear(x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None) -> TensorSpec:
    if not x.shape or x.shape[-1] != weight.shape[-1] or x.dtype is not weight.dtype:
        raise ShapeError(f"linear of {x} by {weight}")
    return like(x, (*x.shape[:-1], *weight.shape[:-1]))


def matmul(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if not a.shape or not b.shape or a.dtype is not b.dtype:
        raise ShapeError(f"matmul of {a} by {b}")
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ShapeError(f"matmul of {a} by {b}")
    return like(a, (*broadcast((a.shape[:-2], b.shape[:-2])), *rows, *columns))


def same_dense(x: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    return like(x, x.shape)


RULES: Mapping[Any, Any] = {
    aten.linear.default: linear,
    aten.matmul.default: matmul,
    aten.layer_norm.default: same_dense,
}
