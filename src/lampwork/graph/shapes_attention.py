"""Shapes of attention and of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lampwork import pristine
from lampwork.graph.shapes_common import ShapeError, broadcast, like, preserved_strides
from lampwork.graph.shapes_cuda import attended, is_cuda
from lampwork.graph.spec import TensorSpec, contiguous_strides


def attention(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    mask: TensorSpec | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> TensorSpec:
    """The flash kernel's result has the layout of the query; the composed one is row-major."""
    if min(len(q.shape), len(k.shape), len(v.shape)) < 2 or q.dtype is not k.dtype or q.dtype is not v.dtype:
        raise ShapeError(f"attention of {q}, {k}, {v}")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(f"attention of {q}, {k}, {v}")
    shape = (*q.shape[:-1], v.shape[-1])
    if is_cuda(q):
        return TensorSpec(shape, attended(shape, q, mask), q.dtype, q.device)
    if _takes_flash(q, k, v, mask, dropout, is_causal, enable_gqa):
        return TensorSpec(shape, preserved_strides(q), q.dtype, q.device)
    batches = broadcast((q.shape[:-2], k.shape[:-2], v.shape[:-2])) if not enable_gqa else q.shape[:-2]
    return like(q, (*batches, q.shape[-2], v.shape[-1]))


def _takes_flash(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    mask: TensorSpec | None,
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Source of the conditions: use_flash_attention_cpp in ATen."""
    same_heads = q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    grouped = enable_gqa and k.shape[:-2] == v.shape[:-2] and q.shape[0] == k.shape[0]
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and dropout == 0
        and len(q.shape) == len(k.shape) == len(v.shape) == 4
        and (same_heads or grouped)
        and q.shape[-1] == k.shape[-1] == v.shape[-1]
        and q.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and 0 not in (*q.shape[:3], k.shape[2], v.shape[2])
        and q.strides[-1] == k.strides[-1] == v.strides[-1] == 1
        and (mask is None or len(mask.shape) in (2, 4))
        and not (mask is not None and mask.requires_grad and pristine.is_grad_enabled())
    )


def lstm(
    x: TensorSpec,
    hx: Sequence[TensorSpec],
    params: Sequence[TensorSpec],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[TensorSpec, ...]:
    hidden, cell = hx
    outer = x.shape[:-1]
    directions = 2 if bidirectional else 1
    shape = (*outer, hidden.shape[-1] * directions)
    output = like(x, shape)
    if batch_first:
        batch, steps, size = shape
        by_step, by_row, _ = contiguous_strides((steps, batch, size))
        output = TensorSpec(shape, (by_row, by_step, 1), x.dtype, x.device)
    return output, like(x, hidden.shape), like(x, cell.shape)


def rnn(
    x: TensorSpec,
    hidden: TensorSpec,
    params: Sequence[TensorSpec],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[TensorSpec, ...]:
    """gru, rnn_tanh, rnn_relu over padded input."""
    output, state, _ = lstm(
        x, (hidden, hidden), params, has_biases, num_layers, dropout, train, bidirectional, batch_first
    )
    return output, state


def packed_lstm(
    x: TensorSpec,
    batch_sizes: TensorSpec,
    hx: Sequence[TensorSpec],
    params: Sequence[TensorSpec],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[TensorSpec, ...]:
    """lstm over a packed sequence: x is (elements of all steps, inputs)."""
    return lstm(x, hx, params, has_biases, num_layers, dropout, train, bidirectional, False)


def packed_rnn(
    x: TensorSpec,
    batch_sizes: TensorSpec,
    hidden: TensorSpec,
    params: Sequence[TensorSpec],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[TensorSpec, ...]:
    """gru, rnn_tanh, rnn_relu over a packed sequence."""
    return rnn(x, hidden, params, has_biases, num_layers, dropout, train, bidirectional, False)
