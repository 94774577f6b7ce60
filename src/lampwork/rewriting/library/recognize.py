"""What rules look for where a pattern would be one of dozens: the same value in whatever spelling.

All read the canonical graph (passes.canonicalize): reductions have dimensions from the front, `x ** 2` and
`square(x)` are `pow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from lampwork.graph.spec import TensorSpec
from lampwork.rewriting.schema import bound_args
from lampwork.standard import math

aten = torch.ops.aten

_DEEPEST = 8
"""Levels of products and sums that are looked through for a polynomial."""

_HIGHEST = 3


def spec(node: fx.Node) -> TensorSpec:
    return cast(TensorSpec, node.meta["val"])


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def close(value: float, wanted: float, dtype: torch.dtype) -> bool:
    """Whether a constant of a formula is `wanted`, within what rounding in `dtype` hides. So 0.7978845608 is the
    square root of 2 / pi in float32, but not in float64."""
    return abs(value - wanted) <= 4 * torch.finfo(dtype).eps * abs(wanted)


def polynomial(node: Any, x: fx.Node, depth: int = _DEEPEST) -> dict[int, float] | None:
    """The coefficients of `node` by power of `x`, None if it is no polynomial in x of at most the third degree.

    before:  mul(add(x, mul(pow(x, 3), 0.044715)), 0.79788)
    gives:   {1: 0.79788, 3: 0.035677}
    """
    if is_number(node):
        return {0: float(node)}
    if node is x:
        return {1: 1.0}
    if not isinstance(node, fx.Node) or depth == 0:
        return None
    target, args = node.target, node.args
    if target in (aten.add.Tensor, aten.sub.Tensor):
        if node.kwargs or len(args) != 2:
            return None
        left, right = polynomial(args[0], x, depth - 1), polynomial(args[1], x, depth - 1)
        sign = 1.0 if target is aten.add.Tensor else -1.0
        return None if left is None or right is None else _sum(left, right, sign)
    if target is aten.mul.Tensor:
        left, right = polynomial(args[0], x, depth - 1), polynomial(args[1], x, depth - 1)
        return None if left is None or right is None else _product(left, right)
    if target is aten.div.Tensor and is_number(args[1]) and args[1] != 0:
        left = polynomial(args[0], x, depth - 1)
        return None if left is None else {p: c / cast(float, args[1]) for p, c in left.items()}
    if target is aten.neg.default:
        left = polynomial(args[0], x, depth - 1)
        return None if left is None else {p: -c for p, c in left.items()}
    if target is aten.pow.Tensor_Scalar and is_number(args[1]) and args[1] in (2, 3) and args[0] is x:
        return {int(cast(int, args[1])): 1.0}
    return None


def _sum(left: dict[int, float], right: dict[int, float], sign: float) -> dict[int, float]:
    return {p: left.get(p, 0.0) + sign * right.get(p, 0.0) for p in {*left, *right}}


def _product(left: dict[int, float], right: dict[int, float]) -> dict[int, float] | None:
    result: dict[int, float] = {}
    for p, a in left.items():
        for q, b in right.items():
            result[p + q] = result.get(p + q, 0.0) + a * b
    return result if max(result, default=0) <= _HIGHEST else None


def mean_dims(node: fx.Node, x: fx.Node) -> list[int] | None:
    """The dimensions over which `node` is the mean of `x`, kept with size 1; None if it is not."""
    scale = 1.0
    if node.target in (aten.div.Tensor, aten.mul.Tensor) and is_number(node.args[1]):
        factor = cast(float, node.args[1])
        scale = 1 / factor if node.target is aten.div.Tensor and factor else factor
        node = cast(fx.Node, node.args[0])
        if node.target is not aten.sum.dim_IntList:
            return None
    elif node.target is not aten.mean.dim:
        return None
    source, dims, keepdim, dtype = bound_args(node)
    if source is not x or not keepdim or dtype not in (None, spec(x).dtype) or not dims:
        return None
    if node.target is aten.sum.dim_IntList:
        sizes = [spec(x).shape[d] for d in dims]
        if any(type(s) is not int for s in sizes) or not close(scale * math.prod(sizes), 1.0, torch.float64):
            return None
    return sorted(dims)


def square_of(node: fx.Node) -> fx.Node | None:
    """What `node` is the square of."""
    if node.target is aten.pow.Tensor_Scalar and is_number(node.args[1]) and node.args[1] == 2:
        return cast(fx.Node, node.args[0])
    if node.target is aten.mul.Tensor and node.args[0] is node.args[1]:
        return cast("fx.Node | None", node.args[0])
    return None


def mean_square_dims(node: fx.Node, x: fx.Node) -> list[int] | None:
    """The dimensions over which `node` is the mean of the squares of `x`."""
    inner = node
    if inner.target in (aten.div.Tensor, aten.mul.Tensor):
        inner = cast(fx.Node, inner.args[0])
    source = bound_args(inner)[0] if inner.op == "call_function" and inner.args else None
    if not isinstance(source, fx.Node) or square_of(source) is not x:
        return None
    return mean_dims(node, source)


def variance_dims(node: fx.Node, x: fx.Node, centred: fx.Node) -> list[int] | None:
    """The dimensions over which `node` is the variance of `x` (of the population, not the estimate from a sample);
    `centred` is x less its mean."""
    if node.target is aten.var.correction:
        source, dims, correction, keepdim = bound_args(node)
        if source is x and keepdim and correction == 0 and dims:
            return sorted(dims)
        return None
    return mean_square_dims(node, centred)


def trailing_shape(x: fx.Node, dims: Sequence[int]) -> list[int] | None:
    """The sizes of the dimensions `dims` of x if they are its last ones and known."""
    shape = spec(x).shape
    if list(dims) != list(range(len(shape) - len(dims), len(shape))):
        return None
    sizes = list(shape[len(shape) - len(dims) :])
    return sizes if all(type(size) is int and size > 0 for size in sizes) else None
