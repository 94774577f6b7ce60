"""Embeddings with `sparse=True` as a joint graph has them: eager's formula makes a sparse tensor of its operands, which
no tensor without data can stand for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lampwork.graph.sparse_gradients import embedding_sparse_backward

aten = torch.ops.aten


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, indices: Tensor, padding_idx: int) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows, ctx.padding_idx = weight.shape[0], padding_idx
        return aten.embedding.default(weight, indices, padding_idx)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        return embedding_sparse_backward(grads[0], indices, ctx.rows, ctx.padding_idx), None, None


def embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Eager refuses sparse gradients that are scaled by frequency, in backward."""
    if not sparse or scale_grad_by_freq:
        return NotImplemented
    return _Lookup.apply(weight, indices, padding_idx)
