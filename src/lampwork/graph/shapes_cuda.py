"""Where kernels of CUDA devices give other dtypes and strides than those of the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lampwork.graph.spec import TensorSpec, contiguous_strides


def is_cuda(spec: TensorSpec) -> bool:
    return spec.device.type == "cuda"


def accumulated(spec: TensorSpec) -> torch.dtype:
    """What statistics of a tensor are kept in: float32 for half types, whatever the parameters are."""
    return torch.float32 if spec.dtype in (torch.float16, torch.bfloat16) else spec.dtype


def keeps_channels_last(x: TensorSpec, weight: TensorSpec) -> bool:
    """Whether a convolution's result has channels last if an operand has. Source: cudnn_conv_suggest_memory_format."""
    return torch.float64 not in (x.dtype, weight.dtype)


def attended(shape: Sequence[int], query: TensorSpec, mask: TensorSpec | None) -> tuple[int, ...]:
    """The strides of attention's result, as the kernels that are chosen first give them: half types without a mask the
    order of the query, others the heads of a position side by side."""
    if len(shape) != 4 or query.dtype is torch.float64:
        return contiguous_strides(shape)
    in_half = query.dtype in (torch.float16, torch.bfloat16)
    if in_half and mask is None and query.strides[1] > query.strides[2]:
        return contiguous_strides(shape)
    _, heads, length, width = shape
    return (length * heads * width, width, heads * width, 1)
