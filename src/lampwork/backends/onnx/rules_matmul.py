"""Matrix products and attention in ONNX."""

from __future__ import annotations

import math
from typing import Any

import torch

from lampwork.backends.onnx.builder import Builder, NotConvertible, Value
from lampwork.backends.onnx.call import Call
from lampwork.backends.onnx.registry import Rules
from lampwork.backends.onnx.rules_pointwise import need_float

rules = Rules()


@rules.converts("linear")
def linear(g: Builder, call: Call, x: Value, weight: Value, bias: Value | None = None) -> str:
    """A Gemm over all rows of x, with the weight as it lies."""
    need_float(x)
    if weight.rank != 2 or x.rank == 0:
        raise NotConvertible(f"a weight of {weight.rank} dimensions")
    out, width = weight.shape
    rows = x.name if x.rank == 2 else g.reshape(x.name, [math.prod(x.shape[:-1]), width])
    product = g.op("Gemm", rows, weight.name, bias.name if bias is not None else "", transB=1)
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
        allowed = torch.ones(rows, columns, dtype=torch.bool).tril()
        added = torch.zeros(rows, columns, dtype=query.dtype).masked_fill(~allowed, -math.inf)
        scores = g.op("Add", scores, g.tensor(added))
    if mask is None:
        return g.op("MatMul", g.op("Softmax", scores, axis=-1), values)
    known = mask.constant
    if mask.dtype is torch.bool:
        if known is not None:
            added = torch.zeros(known.shape, dtype=query.dtype).masked_fill(~known, -math.inf)
            scores = g.op("Add", scores, g.tensor(added))
        else:
            low = g.scalar(-math.inf, query.dtype)
            scores = g.op("Add", scores, g.op("Where", mask.name, g.scalar(0.0, query.dtype), low))
    elif mask.dtype is query.dtype:
        scores = g.op("Add", scores, mask.name)
    else:
        raise NotConvertible("a mask of another dtype")
    weights = g.op("Softmax", scores, axis=-1)
    if known is None or bool(_hidden(known).any()):
        weights = _zero_where_hidden(g, mask, weights, query.dtype)
    return g.op("MatMul", weights, values)


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


def _hidden(mask: torch.Tensor) -> torch.Tensor:
    """The rows in which a mask lets nothing through."""
    return ~mask.any(-1) if mask.dtype is torch.bool else (mask == -math.inf).all(-1)


def _zero_where_hidden(g: Builder, mask: Value, weights: str, dtype: torch.dtype) -> str:
    """Rows in which the mask lets nothing through give zeros, as in eager, where a plain softmax gives nan."""
    last = g.ints([-1])
    if mask.dtype is torch.bool:
        seen = g.op("ReduceMax", g.op("Cast", mask.name, to=6), last, keepdims=1)
        shown = g.op("Cast", seen, to=9)
    else:
        top = g.op("ReduceMax", mask.name, last, keepdims=1)
        shown = g.op("Not", g.op("Equal", top, g.scalar(-math.inf, dtype)))
    return g.op("Where", shown, weights, g.scalar(0.0, dtype))
