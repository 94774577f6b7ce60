"""Shapes of what resizes, samples and pads images, and of their windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lampwork.graph.shapes_common import (
    ShapeError,
    channels_last_strides,
    is_channels_last_strided,
    like,
)
from lampwork.graph.spec import TensorSpec, contiguous_strides

aten = torch.ops.aten

_BICUBIC = 2


def _grid_sampler(dims: int) -> Callable[..., TensorSpec]:
    def grid_sampler(x: TensorSpec, grid: TensorSpec, mode: int, padding: int, corners: bool) -> TensorSpec:
        """x (N, C, *places) at the places grid (N, *out, dims): (N, C, *out)."""
        fits = len(x.shape) == len(grid.shape) == dims + 2 and grid.shape[-1] == dims
        if not fits or grid.shape[0] != x.shape[0] or any(size <= 0 for size in x.shape[2:]):
            raise ShapeError(f"{x} sampled at {grid}")
        if x.dtype != grid.dtype or not x.dtype.is_floating_point or (mode == _BICUBIC and dims == 3):
            raise ShapeError(f"{x} sampled at {grid} by mode {mode}")
        return like(x, (*x.shape[:2], *grid.shape[1:-1]))

    return grid_sampler


def _upsample(dims: int) -> Callable[..., TensorSpec]:
    def upsample(x: TensorSpec, output_size: Sequence[int], *_: Any, **__: Any) -> TensorSpec:
        if len(x.shape) != dims + 2 or len(output_size) != dims:
            raise ShapeError(f"cannot resize {x} to {tuple(output_size)}")
        if not all(size > 0 for size in (*x.shape[1:], *output_size)):
            raise ShapeError(f"cannot resize {x.shape} to {tuple(output_size)}")
        shape = (*x.shape[:2], *output_size)
        strides = channels_last_strides(shape) if is_channels_last_strided(x) else contiguous_strides(shape)
        return TensorSpec(shape, strides, x.dtype, x.device)

    return upsample


def _rearranged(x: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    made = like(x, shape)
    if not is_channels_last_strided(x):
        return made
    return TensorSpec(shape, channels_last_strides(shape), made.dtype, made.device)


def im2col(
    x: TensorSpec,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> TensorSpec:
    """(N, C, H, W): (N, C kh kw, places), with or without the batch."""
    pairs = (kernel, dilation, padding, stride)
    if any(len(pair) != 2 for pair in pairs) or any(
        n <= 0 for pair in (kernel, dilation, stride) for n in pair
    ):
        raise ShapeError(f"windows of {list(kernel)} of {x}")
    if len(x.shape) not in (3, 4) or any(n < 0 for n in padding) or any(size <= 0 for size in x.shape[-3:]):
        raise ShapeError(f"windows of {list(kernel)} of {x}")
    places = 1
    for size, k, d, p, s in zip(x.shape[-2:], kernel, dilation, padding, stride, strict=True):
        count = (size + 2 * p - d * (k - 1) - 1) // s + 1
        if count <= 0:
            raise ShapeError(f"windows of {list(kernel)} of {x}")
        places *= count
    return like(x, (*x.shape[:-3], x.shape[-3] * kernel[0] * kernel[1], places))


def _padded(dims: int, reflects: bool) -> Callable[..., TensorSpec]:
    def padded(x: TensorSpec, padding: Sequence[int]) -> TensorSpec:
        """The last `dims` dimensions with `padding`, the last one's first; with or without a batch."""
        if len(padding) != 2 * dims or len(x.shape) not in (dims + 1, dims + 2):
            raise ShapeError(f"{x} padded by {list(padding)}")
        if any(size <= 0 for size in x.shape[-dims - 1 :]):
            raise ShapeError(f"{x} padded by {list(padding)}")
        shape = list(x.shape)
        for i in range(dims):
            before, after = padding[2 * i], padding[2 * i + 1]
            if reflects and not (before < shape[-1 - i] and after < shape[-1 - i]):
                raise ShapeError(f"{x} padded by {list(padding)}")
            shape[-1 - i] = shape[-1 - i] + before + after
            if shape[-1 - i] < 1:
                raise ShapeError(f"{x} padded by {list(padding)}")
        made = tuple(shape)
        return _rearranged(x, made) if len(made) == dims + 2 else like(x, made)

    return padded


RULES: Mapping[Any, Any] = {
    aten.grid_sampler_2d.default: _grid_sampler(2),
    aten.grid_sampler_3d.default: _grid_sampler(3),
    aten.upsample_nearest1d.default: _upsample(1),
    aten._upsample_nearest_exact1d.default: _upsample(1),
    aten.upsample_linear1d.default: _upsample(1),
    aten.upsample_nearest3d.default: _upsample(3),
    aten._upsample_nearest_exact3d.default: _upsample(3),
    aten.upsample_trilinear3d.default: _upsample(3),
    aten._upsample_bilinear2d_aa.default: _upsample(2),
    aten._upsample_bicubic2d_aa.default: _upsample(2),
    aten.im2col.default: im2col,
    aten.reflection_pad1d.default: _padded(1, True),
    aten.reflection_pad2d.default: _padded(2, True),
    aten.reflection_pad3d.default: _padded(3, True),
    aten.replication_pad1d.default: _padded(1, False),
    aten.replication_pad2d.default: _padded(2, False),
    aten.replication_pad3d.default: _padded(3, False),
}
