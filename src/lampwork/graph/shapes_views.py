"""Shapes of views: the same memory under other sizes and strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lampwork.graph.dims import slice_bounds
from lampwork.graph.shapes_common import ShapeError, infer_size, wrap_dim, wrap_dims
from lampwork.graph.spec import TensorSpec

aten = torch.ops.aten


def view_strides(spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Strides under which the memory of `spec` has `shape`; None if a copy would be needed.

    Source of the algorithm: at::detail::computeStride.
    """
    old_shape, old_strides = spec.shape, spec.strides
    if spec.numel == 0:
        if tuple(shape) == old_shape:
            return old_strides
        strides = [0] * len(shape)
        for i in range(len(shape) - 1, -1, -1):
            strides[i] = 1 if i == len(shape) - 1 else max(shape[i + 1], 1) * strides[i + 1]
        return tuple(strides)
    if not old_shape:
        return (1,) * len(shape)
    new_strides = [0] * len(shape)
    view_dim = len(shape) - 1
    chunk_base = old_strides[-1]
    tensor_numel = 1
    view_numel = 1
    for dim in range(len(old_shape) - 1, -1, -1):
        tensor_numel *= old_shape[dim]
        if dim == 0 or (old_shape[dim - 1] != 1 and old_strides[dim - 1] != tensor_numel * chunk_base):
            while view_dim >= 0 and (view_numel < tensor_numel or shape[view_dim] == 1):
                new_strides[view_dim] = view_numel * chunk_base
                view_numel *= shape[view_dim]
                view_dim -= 1
            if view_numel != tensor_numel:
                return None
            if dim > 0:
                chunk_base = old_strides[dim - 1]
                tensor_numel = 1
                view_numel = 1
    return tuple(new_strides) if view_dim == -1 else None


def view(spec: TensorSpec, shape: Sequence[int]) -> TensorSpec:
    sizes = infer_size(shape, spec.numel)
    strides = view_strides(spec, sizes)
    if strides is None:
        raise ShapeError(f"{spec} cannot be viewed as {list(sizes)}")
    return replace(spec, shape=sizes, strides=strides)


def permute(spec: TensorSpec, dims: Sequence[int]) -> TensorSpec:
    rank = len(spec.shape)
    order = [wrap_dim(dim, rank) for dim in dims]
    if sorted(order) != list(range(rank)):
        raise ShapeError(f"{list(dims)} is no permutation of {rank} dimensions")
    return TensorSpec(
        tuple(spec.shape[i] for i in order),
        tuple(spec.strides[i] for i in order),
        spec.dtype,
        spec.device,
        spec.requires_grad,
    )


def transpose(spec: TensorSpec, dim0: int, dim1: int) -> TensorSpec:
    rank = len(spec.shape)
    order = list(range(rank))
    first, second = wrap_dim(dim0, rank), wrap_dim(dim1, rank)
    if rank:
        order[first], order[second] = order[second], order[first]
    return permute(spec, order)


def t(spec: TensorSpec) -> TensorSpec:
    if len(spec.shape) > 2:
        raise ShapeError(f"t() takes at most 2 dimensions, got {len(spec.shape)}")
    return permute(spec, tuple(reversed(range(len(spec.shape)))))


def select(spec: TensorSpec, dim: int, index: int) -> TensorSpec:
    if not spec.shape:
        raise ShapeError("select() cannot be applied to a tensor without dimensions")
    dim = wrap_dim(dim, len(spec.shape))
    if not -spec.shape[dim] <= index < spec.shape[dim]:
        raise ShapeError(f"index {index} is out of range for size {spec.shape[dim]}")
    return replace(
        spec,
        shape=spec.shape[:dim] + spec.shape[dim + 1 :],
        strides=spec.strides[:dim] + spec.strides[dim + 1 :],
    )


def slice_(
    spec: TensorSpec, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> TensorSpec:
    if not spec.shape or step <= 0:
        raise ShapeError("slice() needs a dimension and a positive step")
    dim = wrap_dim(dim, len(spec.shape))
    first, last = slice_bounds(spec.shape[dim], start, end)
    shape, strides = list(spec.shape), list(spec.strides)
    shape[dim] = (last - first + step - 1) // step
    strides[dim] *= step
    return replace(spec, shape=tuple(shape), strides=tuple(strides))


def unsqueeze(spec: TensorSpec, dim: int) -> TensorSpec:
    rank = len(spec.shape)
    dim = wrap_dim(dim, rank + 1)
    stride = spec.shape[dim] * spec.strides[dim] if dim < rank else 1
    return replace(
        spec,
        shape=(*spec.shape[:dim], 1, *spec.shape[dim:]),
        strides=(*spec.strides[:dim], stride, *spec.strides[dim:]),
    )


def _squeezed(spec: TensorSpec, dims: Sequence[int]) -> TensorSpec:
    kept = [i for i, size in enumerate(spec.shape) if size != 1 or i not in dims]
    return replace(
        spec,
        shape=tuple(spec.shape[i] for i in kept),
        strides=tuple(spec.strides[i] for i in kept),
    )


def squeeze(spec: TensorSpec) -> TensorSpec:
    return _squeezed(spec, range(len(spec.shape)))


def squeeze_dim(spec: TensorSpec, dim: int) -> TensorSpec:
    return _squeezed(spec, (wrap_dim(dim, len(spec.shape)),))


def squeeze_dims(spec: TensorSpec, dims: Sequence[int]) -> TensorSpec:
    return _squeezed(spec, wrap_dims(list(dims), len(spec.shape)) if dims else ())


def expand(spec: TensorSpec, size: Sequence[int], *, implicit: bool = False) -> TensorSpec:
    del implicit
    if not spec.shape:
        if any(wanted < 0 for wanted in size):
            raise ShapeError(f"{spec} cannot be expanded to {list(size)}")
        return replace(spec, shape=tuple(size), strides=(0,) * len(size))
    offset = len(size) - len(spec.shape)
    if offset < 0:
        raise ShapeError(f"{spec} cannot be expanded to {list(size)}")
    shape: list[int] = []
    strides: list[int] = []
    for i in range(len(size) - 1, -1, -1):
        own = i - offset
        old = spec.shape[own] if own >= 0 else 1
        stride = spec.strides[own] if own >= 0 else (shape[-1] * strides[-1] if shape else 1)
        wanted = size[i]
        if wanted == -1:
            if own < 0:
                raise ShapeError("-1 is not allowed in a leading, new dimension of expand()")
            wanted = old
        if old != wanted:
            if old != 1 or wanted < 0:
                raise ShapeError(f"{spec} cannot be expanded to {list(size)}")
            old, stride = wanted, 0
        shape.append(old)
        strides.append(stride)
    return replace(spec, shape=tuple(reversed(shape)), strides=tuple(reversed(strides)))


def as_strided(
    spec: TensorSpec, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> TensorSpec:
    del storage_offset
    return replace(spec, shape=tuple(size), strides=tuple(stride))


def diagonal(spec: TensorSpec, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorSpec:
    rank = len(spec.shape)
    first, second = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if first == second:
        raise ShapeError("diagonal() needs two different dimensions")
    rows, columns = spec.shape[first], spec.shape[second]
    length = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    kept = [i for i in range(rank) if i not in (first, second)]
    return replace(
        spec,
        shape=(*(spec.shape[i] for i in kept), length),
        strides=(*(spec.strides[i] for i in kept), spec.strides[first] + spec.strides[second]),
    )


def unfold(spec: TensorSpec, dimension: int, size: int, step: int) -> TensorSpec:
    rank = len(spec.shape)
    dim = wrap_dim(dimension, rank)
    extent = spec.shape[dim] if rank else 1
    if size > extent or size < 0 or step <= 0:
        raise ShapeError(f"unfold of size {size}, step {step} does not fit {extent}")
    if not rank:
        return replace(spec, shape=(size,), strides=(1,))
    shape, strides = list(spec.shape), list(spec.strides)
    shape[dim] = (extent - size) // step + 1
    strides[dim] *= step
    return replace(spec, shape=(*shape, size), strides=(*strides, spec.strides[dim]))


def same(spec: TensorSpec) -> TensorSpec:
    return spec


RULES: Mapping[Any, Any] = {
    aten.view.default: view,
    aten._unsafe_view.default: view,
    aten.permute.default: permute,
    aten.transpose.int: transpose,
    aten.t.default: t,
    aten.select.int: select,
    aten.slice.Tensor: slice_,
    aten.unsqueeze.default: unsqueeze,
    aten.squeeze.default: squeeze,
    aten.squeeze.dim: squeeze_dim,
    aten.squeeze.dims: squeeze_dims,
    aten.expand.default: expand,
    aten.as_strided.default: as_strided,
    aten.diagonal.default: diagonal,
    aten.unfold.default: unfold,
    aten.alias.default: same,
    aten.detach.default: same,
}
