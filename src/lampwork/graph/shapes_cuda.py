"""Where kernels of CUDA devices give other dtypes and strides than those of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lampwork.graph.shapes_common import (
    Result,
    ShapeError,
    iteration_order,
    like,
    preserved_strides,
    strides_in_order,
)
from lampwork.graph.spec import TensorSpec, contiguous_strides

aten = torch.ops.aten


def is_cuda(spec: TensorSpec) -> bool:
    return spec.device.type == "cuda"


def accumulated(spec: TensorSpec) -> torch.dtype:
    """What statistics of a tensor are kept in: float32 for half types, whatever the parameters are."""
    return torch.float32 if spec.dtype in (torch.float16, torch.bfloat16) else spec.dtype


def keeps_channels_last(x: TensorSpec, weight: TensorSpec) -> bool:
    """Whether a convolution's result has channels last if an operand has. Source: cudnn_conv_suggest_memory_format."""
    return torch.float64 not in (x.dtype, weight.dtype)


def attended(shape: tuple[int, ...], query: TensorSpec, mask: TensorSpec | None) -> tuple[int, ...]:
    """The strides of attention's result, as the kernels that are chosen first give them: half types without a mask the
    order of the query, others the heads of a position side by side."""
    if len(shape) != 4 or query.dtype is torch.float64:
        return contiguous_strides(shape)
    in_half = query.dtype in (torch.float16, torch.bfloat16)
    if in_half and mask is None and query.strides[1] > query.strides[2]:
        return contiguous_strides(shape)
    _, heads, length, width = shape
    return (length * heads * width, width, heads * width, 1)


def efficient_attention(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    bias: TensorSpec | None,
    keeps_sums: bool,
    *args: Any,
    **kwargs: Any,
) -> tuple[TensorSpec, ...]:
    """(result, logarithms of the sums for rows in multiples of 32, seed and offset of the dropout)."""
    if (
        not len(q.shape) == len(k.shape) == len(v.shape) == 4
        or q.shape[:2] != k.shape[:2]
        or k.shape[:3] != v.shape[:3]
    ):
        raise ShapeError(f"attention of {q}, {k}, {v}")
    batch, heads, length, _ = q.shape
    rows = -(-length // _ROWS) * _ROWS if keeps_sums else 0
    number = like(q, (), torch.int64)
    return _heads_inside(q, length, v.shape[3]), like(q, (batch, heads, rows), torch.float32), number, number


_ROWS = 32


def _heads_inside(q: TensorSpec, length: int, width: int) -> TensorSpec:
    """[batch, heads, length, width], the heads of a position side by side."""
    batch, heads = q.shape[:2]
    strides = (length * heads * width, width, heads * width, 1)
    return TensorSpec((batch, heads, length, width), strides, q.dtype, q.device)


def efficient_attention_backward(
    grad: TensorSpec,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    bias: TensorSpec | None,
    result: TensorSpec,
    sums: TensorSpec,
    seed: TensorSpec,
    offset: TensorSpec,
    dropout: float,
    wanted: Sequence[bool],
    *args: Any,
    **kwargs: Any,
) -> tuple[TensorSpec | None, ...]:
    """The gradients of the query, key, value and bias; None for a bias that has none."""
    found = tuple(_heads_inside(each, each.shape[2], each.shape[3]) for each in (q, k, v))
    of_bias = None if bias is None or not wanted[3] else like(bias, bias.shape)
    return (*found, of_bias)


Attended = tuple[TensorSpec | None, ...]


def _check_attended(q: TensorSpec, k: TensorSpec, v: TensorSpec) -> None:
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4 or k.shape[:3] != v.shape[:3]:
        raise ShapeError(f"attention of {q}, {k}, {v}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ShapeError(f"attention of {q}, {k}, {v}")


def flash_attention(q: TensorSpec, k: TensorSpec, v: TensorSpec, *args: Any, **kwargs: Any) -> Attended:
    """(result, logarithms of the sums, two that only nested tensors have, two numbers, state of the generator twice,
    scores for debugging)."""
    _check_attended(q, k, v)
    if v.shape[3] != q.shape[3]:
        raise ShapeError(f"attention of {q}, {k}, {v}")
    state = like(q, (2,), torch.uint64), like(q, (), torch.uint64)
    sums = like(q, q.shape[:3], torch.float32)
    return (_laid_out_as(q, q.shape), sums, None, None, None, None, *state, like(q, (0,)))


def cudnn_attention(q: TensorSpec, k: TensorSpec, v: TensorSpec, *args: Any, **kwargs: Any) -> Attended:
    """As `flash_attention`, but for the state of the generator, and without scores."""
    _check_attended(q, k, v)
    number = like(q, (), torch.int64)
    sums = like(q, (*q.shape[:3], 1), torch.float32)
    made = _laid_out_as(q, (*q.shape[:3], v.shape[3]))
    return (made, sums, None, None, None, None, number, number, None)


def attention_backward(
    grad: TensorSpec, q: TensorSpec, k: TensorSpec, v: TensorSpec, *args: Any, **kwargs: Any
) -> Attended:
    """The gradients of the query, key and value, laid out as these."""
    return tuple(_laid_out_as(each, each.shape) for each in (q, k, v))


def _laid_out_as(x: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """A dense tensor with its dimensions in the order that those of `x` have."""
    same = shape == x.shape
    strides = preserved_strides(x) if same else strides_in_order(shape, iteration_order(x.shape, (x,)))
    return TensorSpec(shape, strides, x.dtype, x.device)


def grid_sampler(x: TensorSpec, grid: TensorSpec) -> TensorSpec:
    """x (N, C, H, W) at the places grid (N, h, w, 2): (N, C, h, w)."""
    _check_sampled(x, grid)
    return like(x, (*x.shape[:2], *grid.shape[1:3]))


def grid_sampler_backward(x: TensorSpec, grid: TensorSpec, grad: TensorSpec) -> tuple[TensorSpec, ...]:
    """The gradients of the input and of the grid."""
    _check_sampled(x, grid)
    if grad.shape != (*x.shape[:2], *grid.shape[1:3]):
        raise ShapeError(f"gradients of {x} sampled at {grid} from {grad}")
    return like(x, x.shape), like(grid, grid.shape)


def _check_sampled(x: TensorSpec, grid: TensorSpec) -> None:
    fits = len(x.shape) == len(grid.shape) == 4 and grid.shape[3] == 2 and grid.shape[0] == x.shape[0]
    if not fits or x.dtype != grid.dtype:
        raise ShapeError(f"{x} sampled at {grid}")


def gru_cell(
    of_input: TensorSpec,
    of_hidden: TensorSpec,
    hidden: TensorSpec,
    input_bias: TensorSpec | None = None,
    hidden_bias: TensorSpec | None = None,
) -> tuple[TensorSpec, ...]:
    """(the next state, what backward needs). hidden: (B, H), the state; both products with weights: (B, 3H)."""
    if len(hidden.shape) != 2:
        raise ShapeError(f"a cell with the state {hidden}")
    batch, width = hidden.shape
    gates = (batch, 3 * width)
    biases = [bias for bias in (input_bias, hidden_bias) if bias is not None]
    fits = of_input.shape == of_hidden.shape == gates and all(bias.shape == gates[1:] for bias in biases)
    same = {each.dtype for each in (of_input, of_hidden, *biases)} == {hidden.dtype}
    if not fits or not same or len(biases) == 1:
        raise ShapeError(f"a cell of {of_input} and {of_hidden} with {biases} for the state {hidden}")
    return like(hidden, hidden.shape), like(hidden, (batch, _GRU_KEPT * width))


def gru_cell_backward(grad: TensorSpec, kept: TensorSpec, has_bias: bool) -> Attended:
    """The gradients of both products, of the hidden state, and of the biases."""
    if len(grad.shape) != 2 or kept.shape != (grad.shape[0], _GRU_KEPT * grad.shape[1]):
        raise ShapeError(f"the gradient {grad} of a cell that keeps {kept}")
    batch, width = grad.shape
    gates, bias = like(kept, (batch, 3 * width)), like(kept, (3 * width,)) if has_bias else None
    return gates, gates, like(grad, grad.shape), bias, bias


_GRU_KEPT = 5
"""Numbers that backward needs of each one of the state: three gates, the state before, and a part of a product."""

RULES: Mapping[Any, Callable[..., Result]] = {
    aten._thnn_fused_gru_cell.default: gru_cell,
    aten._thnn_fused_gru_cell_backward.default: gru_cell_backward,
    aten.cudnn_grid_sampler.default: grid_sampler,
    aten.cudnn_grid_sampler_backward.default: grid_sampler_backward,
    aten._scaled_dot_product_efficient_attention.default: efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward.default: efficient_attention_backward,
    aten._scaled_dot_product_flash_attention.default: flash_attention,
    aten._scaled_dot_product_flash_attention_backward.default: attention_backward,
    aten._scaled_dot_product_cudnn_attention.default: cudnn_attention,
    aten._scaled_dot_product_cudnn_attention_backward.default: attention_backward,
}
