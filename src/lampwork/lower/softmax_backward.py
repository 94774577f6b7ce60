"""Gradients of softmax and of its logarithm, from their results."""

from __future__ import annotations

import torch

from lampwork.graph.shapes_common import wrap_dim
from lampwork.loops.ir.nodes import DType, Expr
from lampwork.lower import exprs as e
from lampwork.lower.arrays import Array, read
from lampwork.lower.context import Context, keep
from lampwork.lower.dtypes import FLOATS, compute_dtype
from lampwork.lower.reduce import reduce_value, value_of
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()


def _sum(ctx: Context, x: Array, dim: int, value: Expr) -> Expr:
    """The sum over `dim`, at each point of x."""
    total = reduce_value(ctx, "sum", x.shape, [dim], value, hint="sum")
    return read(keep(total, x.shape, [dim]), x.shape)


def _prepared(grad: Array, dim: int) -> tuple[int, DType]:
    if grad.rank == 0 or grad.numel == 0 or grad.dtype not in FLOATS:
        raise NotExpressible("the gradient of nothing")
    return wrap_dim(dim, grad.rank), compute_dtype(grad.dtype)


@rules.lowers("_softmax_backward_data")
def softmax(ctx: Context, grad: Array, result: Array, dim: int, input_dtype: torch.dtype) -> Array:
    """(grad - sum(grad * result)) * result."""
    dim, dtype = _prepared(grad, dim)
    given, share = value_of(grad, dtype), value_of(result, dtype)
    total = _sum(ctx, grad, dim, e.product(given, share))
    return ctx.result(e.mul(e.sub(given, total), share))


@rules.lowers("_log_softmax_backward_data")
def log_softmax(ctx: Context, grad: Array, result: Array, dim: int, input_dtype: torch.dtype) -> Array:
    """grad - exp(result) * sum(grad)."""
    dim, dtype = _prepared(grad, dim)
    given = value_of(grad, dtype)
    share = e.op("exp", value_of(result, dtype))
    return ctx.result(e.fma(e.op("neg", share), _sum(ctx, grad, dim, given), given))
