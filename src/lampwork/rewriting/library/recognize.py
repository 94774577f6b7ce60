"""What rules look for where a pattern would be one of dozens: polynomials, in whatever order they are written.

It reads the canonical graph (passes.canonicalize): `square(x)` is `pow`.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import fx

aten = torch.ops.aten

_DEEPEST = 8
"""Levels of products and sums that are looked through for a polynomial."""

_HIGHEST = 3


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
