"""Matrix products and attention in ONNX."""

from __future__ import annotations

from typing import Any

import torch

from lampwork import pristine
from lampwork.backends.onnx.builder import Builder, NotConvertible, Value, element_type
from lampwork.backends.onnx.call import Call
from lampwork.backends.onnx.registry import Rules
from lampwork.backends.onnx.rules_pointwise import need_float
from lampwork.standard import math

rules = Rules()


@rules.converts("linear")
def linear(g: Builder, call: Call, x: Value, weight: Value, bias: Value | None = None) -> str:
    """A Gemm over all rows of x, with the weight as it lies."""
    need_float(x)
    if weight.rank != 2 or x.rank == 0:
        raise NotConvertible(f"a weight of {weight.rank} dimensions")
    out, width = weight.shape
    rows = x.name if x.rank == 2 else g.reshape(x.name, [math.prod(x.shape[:-1]), width])
    known = weight.constant
    turned = known is not None and not known.is_contiguous() and known.t().is_contiguous()
    matrix = g.tensor(known.t()) if turned and known is not None else weight.name
    product = g.op("Gemm", rows, matrix, bias.name if bias is not None else "", transB=int(not turned))
    return product if x.rank == 2 else g.reshape(product, [*x.shape[:-1], out])


@rules.converts("mm", "bmm", "matmul", "mv", "dot")
def matmul(g: Builder, call: Call, x: Value, y: Value) -> str:
    need_float(x)
    return g.op("MatMul", x.name, y.name)


@rules.converts("addmm")
def addmm(g: Builder, call: Call, bias: Value, x: Value, y: Value, beta: Any = 1, alpha: Any = 1) -> str:
    need_float(x)
    if beta == 0:
        return g.op("Gemm", x.name, y.name, alpha=float(alpha))
    return g.op("Gemm", x.name, y.name, bias.name, alpha=float(alpha), beta=float(beta))


@rules.converts("baddbmm")
def baddbmm(g: Builder, call: Call, bias: Value, x: Value, y: Value, beta: Any = 1, alpha: Any = 1) -> str:
    need_float(x)
    product = g.op("MatMul", x.name, y.name)
    if alpha != 1:
        product = g.op("Mul", product, g.scalar(alpha, x.dtype))
    if beta == 0:
        return product
    added = bias.name if beta == 1 else g.op("Mul", bias.name, g.scalar(beta, x.dtype))
    return g.op("Add", product, added)


@rules.converts("scaled_dot_product_attention")
def scaled_dot_product_attention(
    g: Builder,
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    gqa: bool = False,
) -> str:
    need_float(query)
    if dropout:
        raise NotConvertible("dropout that draws random numbers")
    if query.rank < 3 or len({query.rank, key.rank, value.rank}) != 1:
        raise NotConvertible("operands of several ranks, or without a batch")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    keys, values = key.name, value.name
    if gqa:
        keys, values = _repeated(g, key, query), _repeated(g, value, query)
    swapped = [*range(query.rank - 2), query.rank - 1, query.rank - 2]
    scaled = g.op("Mul", query.name, g.scalar(factor, query.dtype))
    scores = g.op("MatMul", scaled, g.op("Transpose", keys, perm=swapped))
    if causal:
        rows, columns = query.shape[-2], key.shape[-2]
        allowed = pristine.ones(rows, columns, dtype=torch.bool).tril()
        added = pristine.zeros(rows, columns, dtype=query.dtype).masked_fill(~allowed, -math.inf)
        scores = g.op("Add", scores, g.tensor(added))
    if mask is None:
        return g.op("MatMul", g.op("Softmax", scores, axis=-1), values)
    if mask.dtype is torch.bool:
        return g.op("MatMul", _weights_behind_choice(g, mask, scores, query.dtype), values)
    if mask.dtype is not query.dtype:
        raise NotConvertible("a mask of another dtype")
    return g.op("MatMul", _weights_behind_numbers(g, mask, scores), values)


def _repeated(g: Builder, x: Value, query: Value) -> str:
    """Each head as often as queries share it."""
    heads, wanted = x.shape[-3], query.shape[-3]
    if heads == wanted:
        return x.name
    lead, tail = list(x.shape[:-3]), list(x.shape[-2:])
    wide = g.reshape(x.name, [*lead, heads, 1, *tail])
    return g.reshape(
        g.op("Expand", wide, g.ints([*lead, heads, wanted // heads, *tail])), [*lead, wanted, *tail]
    )


# A row of scores in which every place is closed gives zeros, as in eager. It is opened for the softmax, and found by
# counting: OpenVINO's largest number of none but -inf is the lowest finite one.


def _any(g: Builder, places: str, dtype: torch.dtype) -> str:
    """Whether one of each row of `places` is true, as a column."""
    count = g.op("ReduceMax", g.op("Cast", places, to=element_type(dtype)), g.ints([-1]), keepdims=1)
    return g.op("Cast", count, to=element_type(torch.bool))


def _weights_behind_choice(g: Builder, mask: Value, scores: str, dtype: torch.dtype) -> str:
    """The softmax over the places where a bool mask is true; what is in the others does not matter."""
    known, closed = mask.constant, g.scalar(-math.inf, dtype)
    if known is not None and bool(known.any(-1).all()):
        return g.op("Softmax", g.op("Where", mask.name, scores, closed), axis=-1)
    shown = _any(g, mask.name, dtype)
    opened = g.op("Or", mask.name, g.op("Not", shown))
    weights = g.op("Softmax", g.op("Where", opened, scores, closed), axis=-1)
    return g.op("Where", shown, weights, g.scalar(0.0, dtype))


def _weights_behind_numbers(g: Builder, mask: Value, scores: str) -> str:
    """The softmax of scores to which a mask is added."""
    known, added = mask.constant, mask.name
    if known is not None and not bool((known == -math.inf).all(-1).any()):
        return g.op("Softmax", g.op("Add", scores, added), axis=-1)
    shown = _any(g, g.op("Not", g.op("Equal", added, g.scalar(-math.inf, mask.dtype))), mask.dtype)
    nothing = g.scalar(0.0, mask.dtype)
    weights = g.op("Softmax", g.op("Add", scores, g.op("Where", shown, added, nothing)), axis=-1)
    return g.op("Where", shown, weights, nothing)
