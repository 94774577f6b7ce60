"""Attention as a joint graph has it: products around a softmax.

before: y = scaled_dot_product_attention(q, k, v)
after:  p = softmax(q @ k^T * scale); y = p @ v
        and in backward:
            grad_v = p^T @ grad_y
            grad_s = softmax_backward(grad_y @ v^T, p) * scale
            grad_q = grad_s @ k; grad_k = grad_s^T @ q

eager differentiates by a kernel of its own, which keeps no scores and computes them again. Products are two to three
times as fast, at float32[1, 8, 128, 64] as at [2, 12, 512, 64], and the scores, at 512 columns, are half of what a
layer of heads of 64 saves anyway. On other devices it stays what eager chooses for them.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from lampwork import pristine

aten = torch.ops.aten

MOST_COLUMNS = 512
"""Scores of a query that are kept for backward."""


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, is_causal: bool) -> Tensor:
        scores = q.matmul(k.transpose(-1, -2)) * scale
        if is_causal:
            later = pristine.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        part = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, part)
        ctx.scale = scale
        return _like(part.matmul(v), q)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, part = ctx.saved_tensors
        (grad,) = grads
        grad_part = grad.matmul(v.transpose(-1, -2))
        grad_scores = aten._softmax_backward_data(grad_part, part, -1, part.dtype) * ctx.scale
        return (
            _laid_out(grad_scores.matmul(k)),
            _laid_out(grad_scores.transpose(-1, -2).matmul(q)),
            _laid_out(part.transpose(-1, -2).matmul(grad)),
            None,
            None,
        )


def _like(result: Tensor, q: Tensor) -> Tensor:
    """Laid out as the queries, which is what eager's kernel gives."""
    order = sorted(range(4), key=lambda i: (-q.stride(i), i))
    if order == [0, 1, 2, 3]:
        return result
    return result.permute(order).contiguous().permute([order.index(i) for i in range(4)])


def _laid_out(gradient: Tensor) -> Tensor:
    """As eager's kernel lays gradients out: heads behind positions."""
    return gradient.transpose(1, 2).contiguous().transpose(1, 2)


def form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """What the operator gives; NotImplemented where eager has no kernel of its own, or products are not faster."""
    if attn_mask is not None or dropout_p or enable_gqa or q.shape[1:2] != k.shape[1:2]:
        return NotImplemented
    if not q.dim() == k.dim() == v.dim() == 4 or q.dtype is not torch.float32:
        return NotImplemented
    if not q.shape[3] == k.shape[3] == v.shape[3] or 0 in (*q.shape, *k.shape):
        return NotImplemented
    if any(tensor.stride(3) != 1 or tensor.device.type != "cpu" for tensor in (q, k, v)):
        return NotImplemented
    if k.shape[2] > MOST_COLUMNS:
        return NotImplemented
    factor = 1 / sqrt(q.shape[3]) if scale is None else scale
    return _Attention.apply(q, k, v, factor, is_causal)
