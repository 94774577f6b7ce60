"""Shapes of operators that make, copy, join, pick and place elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lampwork import pristine
from lampwork.errors import UnsupportedOpError
from lampwork.graph.shapes_common import (
    ShapeError,
    broadcast,
    dense,
    format_strides,
    is_channels_last_strided,
    is_dense,
    iterator_strides,
    like,
    preserved_strides,
    result_type,
    scalar_dtype,
    wrap_dim,
)
from lampwork.graph.shapes_views import expand, select, slice_, unsqueeze, view, view_strides
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.graph.symbols import SymbolicFloat, SymbolicInt, is_integer
from lampwork.standard import math

aten = torch.ops.aten
CPU = torch.device("cpu")

# --- creation --------------------------------------------------------------------------------------------------------


def created(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    memory_format: Any = None,
    **_: Any,
) -> TensorSpec:
    """zeros, ones, empty, rand, randn."""
    spec = dense(size, dtype or pristine.get_default_dtype(), torch.device(device or CPU))
    if memory_format in (None, torch.contiguous_format):
        return spec
    return TensorSpec(spec.shape, format_strides(spec, memory_format), spec.dtype, spec.device)


def full(
    size: Sequence[int],
    value: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> TensorSpec:
    return dense(size, dtype or scalar_dtype(value), torch.device(device or CPU))


def scalar_tensor(
    value: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> TensorSpec:
    return dense((), dtype or pristine.get_default_dtype(), torch.device(device or CPU))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> TensorSpec:
    if any(type(n) is bool or n < 0 for n in (*size, *stride)):
        raise UnsupportedOpError(f"empty_strided of sizes {list(size)} and strides {list(stride)}")
    made = TensorSpec(
        tuple(size), tuple(stride), dtype or pristine.get_default_dtype(), torch.device(device or CPU)
    )
    if not is_dense(made):
        # What is recorded of a tensor's memory is its elements, each once.
        raise UnsupportedOpError(
            f"memory of {list(size)} with strides {list(stride)}: gaps, or shared elements"
        )
    return made


def new_empty_strided(
    spec: TensorSpec,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> TensorSpec:
    return empty_strided(size, stride, dtype=dtype or spec.dtype, device=device or spec.device)


def _holds(dtype: torch.dtype, value: Any) -> bool:
    """Whether a dtype holds a number, and double precision does, in which eager counts."""
    if dtype in (torch.int64, torch.float64, torch.float32):
        hint = value.hint if isinstance(value, (SymbolicInt, SymbolicFloat)) else value
        return abs(hint) < 1 << 53
    most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    return bool(-most <= value) and bool(value <= most)


def _arange(start: Any, end: Any, step: Any, dtype: torch.dtype | None, device: Any) -> TensorSpec:
    if dtype is None:
        whole = all(isinstance(value, bool) or is_integer(value) for value in (start, end, step))
        dtype = torch.int64 if whole else pristine.get_default_dtype()
    if dtype is torch.int64:  # the only type that truncates before it counts
        start, end, step = (value if is_integer(value) else int(value) for value in (start, end, step))
    if dtype is torch.bool or dtype.is_complex:
        raise UnsupportedOpError(f"arange in {dtype}")
    if not all(_holds(dtype, value) for value in (start, end, step)):
        raise UnsupportedOpError(f"arange from {start} to {end} in steps of {step}")
    if step == 0 or (end - start) * step < 0:
        raise ShapeError(f"arange from {start} to {end} in steps of {step}")
    if step < 0:
        start, end, step = -start, -end, -step
    if dtype is torch.int64 or all(is_integer(value) for value in (start, end, step)):
        count = -((start - end) // step)
    else:
        count = math.ceil((end - start) / step)
    return dense((count,), dtype, torch.device(device or CPU))


def arange(end: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> TensorSpec:
    return _arange(0, end, 1, dtype, device)


def arange_start(
    start: Any, end: Any, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> TensorSpec:
    return _arange(start, end, 1, dtype, device)


def arange_step(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> TensorSpec:
    return _arange(start, end, step, dtype, device)


def created_like(
    spec: TensorSpec,
    *args: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    memory_format: Any = None,
    **_: Any,
) -> TensorSpec:
    """zeros_like, full_like, rand_like, ...: the layout is preserved unless a memory format is given."""
    place = torch.device(device or spec.device)
    return TensorSpec(spec.shape, format_strides(spec, memory_format), dtype or spec.dtype, place)


def created_new(
    spec: TensorSpec,
    size: Sequence[int],
    *args: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **_: Any,
) -> TensorSpec:
    """new_zeros, new_full, ..."""
    return dense(size, dtype or spec.dtype, torch.device(device or spec.device))


_DRAWN = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    }
)


def bernoulli_of_number(spec: TensorSpec, p: float = 0.5, *, generator: Any = None) -> TensorSpec:
    if spec.dtype not in _DRAWN or not 0 <= p <= 1:
        raise ShapeError(f"ones of probability {p} in {spec.dtype}")
    return like(spec, spec.shape)


def eye(
    n: int, m: int | None = None, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> TensorSpec:
    if n < 0 or (m is not None and m < 0):
        raise ShapeError(f"eye of {n} rows and {m} columns")
    return dense(
        (n, n if m is None else m), dtype or pristine.get_default_dtype(), torch.device(device or CPU)
    )


# --- copies ----------------------------------------------------------------------------------------------------------


def clone(spec: TensorSpec, *, memory_format: Any = None) -> TensorSpec:
    return TensorSpec(spec.shape, format_strides(spec, memory_format), spec.dtype, spec.device)


def to_copy(
    spec: TensorSpec,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    memory_format: Any = None,
    **_: Any,
) -> TensorSpec:
    place = spec.device if device is None else torch.device(device)
    return TensorSpec(spec.shape, format_strides(spec, memory_format), dtype or spec.dtype, place)


def packed_like(spec: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    """Row-major, whatever the layout of the argument."""
    return like(spec, spec.shape)


def preserved_like(spec: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    """`clone()` of the first argument, with some elements changed."""
    return TensorSpec(spec.shape, preserved_strides(spec), spec.dtype, spec.device)


def dropout(spec: TensorSpec, p: float, train: bool) -> TensorSpec:
    """The tensor times noise of its own layout, or times a zero."""
    noise = TensorSpec((), (), spec.dtype, spec.device) if p == 1 else preserved_like(spec)
    return TensorSpec(spec.shape, iterator_strides(spec.shape, (spec, noise)), spec.dtype, spec.device)


def kept_like(spec: TensorSpec) -> TensorSpec:
    """The very strides of the tensor, gaps included, unless elements share memory."""
    if any(size > 1 and stride == 0 for size, stride in zip(spec.shape, spec.strides, strict=True)):
        return preserved_like(spec)
    return TensorSpec(spec.shape, spec.strides, spec.dtype, spec.device)


def select_scatter(spec: TensorSpec, source: TensorSpec, dim: int, index: int) -> TensorSpec:
    if select(spec, dim, index).shape != source.shape:
        raise ShapeError(f"select_scatter of {source} into {spec}")
    return kept_like(spec)


def slice_scatter(
    spec: TensorSpec,
    source: TensorSpec,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> TensorSpec:
    broadcast((slice_(spec, dim, start, end, step).shape, source.shape))
    return kept_like(spec)


# --- joining ---------------------------------------------------------------------------------------------------------


def cat(tensors: Sequence[TensorSpec], dim: int = 0) -> TensorSpec:
    """Old torch semantics: tensors of shape [0] are passed over."""
    if not tensors:
        raise ShapeError("cat of no tensors")
    kept = [spec for spec in tensors if spec.shape != (0,)]
    dtype = result_type(tensors)
    if not kept:
        return like(tensors[0], (0,), dtype)
    first = kept[0]
    if not first.shape:
        raise ShapeError("cat of tensors without dimensions")
    dim = wrap_dim(dim, len(first.shape))
    total = 0
    for spec in kept:
        if spec.shape[:dim] != first.shape[:dim] or spec.shape[dim + 1 :] != first.shape[dim + 1 :]:
            raise ShapeError(f"cat of {first} and {spec} along {dim}")
        total += spec.shape[dim]
    result = like(first, (*first.shape[:dim], total, *first.shape[dim + 1 :]), dtype)
    if len(first.shape) in (4, 5) and all(is_channels_last_strided(spec) for spec in tensors):
        memory_format = torch.channels_last if len(first.shape) == 4 else torch.channels_last_3d
        return TensorSpec(result.shape, format_strides(result, memory_format), dtype, result.device)
    return result


def stack(tensors: Sequence[TensorSpec], dim: int = 0) -> TensorSpec:
    """torch makes it a cat along an existing dimension, seen as two; only a new last dimension is unsqueezed."""
    if not tensors or any(spec.shape != tensors[0].shape for spec in tensors):
        raise ShapeError("stack needs tensors of one shape")
    shape = tensors[0].shape
    dim = wrap_dim(dim, len(shape) + 1)
    if dim == len(shape):
        return cat([unsqueeze(spec, dim) for spec in tensors], dim)
    return view(cat(tensors, dim), (*shape[:dim], len(tensors), *shape[dim:]))


def roll(spec: TensorSpec, shifts: Sequence[int], dims: Sequence[int] = ()) -> TensorSpec:
    """Over one dimension torch makes it a cat of the two halves; over more, one after the other."""
    if not dims:
        return like(spec, spec.shape)
    if spec.numel == 0:
        return preserved_like(spec)
    for dim, shift in zip(dims, shifts, strict=True):
        dim = wrap_dim(dim, len(spec.shape))
        middle = -shift % spec.shape[dim]
        spec = cat([slice_(spec, dim, middle), slice_(spec, dim, 0, middle)], dim)
    return spec


def repeat(spec: TensorSpec, repeats: Sequence[int]) -> TensorSpec:
    if len(repeats) < len(spec.shape):
        raise ShapeError(f"repeat of {spec} by {list(repeats)}")
    shape = (1,) * (len(repeats) - len(spec.shape)) + spec.shape
    return like(spec, tuple(size * times for size, times in zip(shape, repeats, strict=True)))


def constant_pad(spec: TensorSpec, pad: Sequence[int], value: Any = 0) -> TensorSpec:
    shape = list(spec.shape)
    if len(pad) % 2 or len(pad) > 2 * len(shape):
        raise ShapeError(f"padding {list(pad)} of {spec}")
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    if any(size < 0 for size in shape):
        raise ShapeError(f"padding {list(pad)} of {spec}")
    result = like(spec, shape)
    if all(p <= 0 for p in pad):
        # Nothing is filled: torch clones the part that is left.
        return clone(replace(spec, shape=tuple(shape)))
    if len(shape) in (4, 5) and is_channels_last_strided(spec):
        chosen = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        return TensorSpec(result.shape, format_strides(result, chosen), spec.dtype, spec.device)
    return result


# --- picking and placing ---------------------------------------------------------------------------------------------


def embedding(weight: TensorSpec, indices: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    if len(weight.shape) != 2 or indices.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"embedding of {indices} in {weight}")
    return like(weight, (*indices.shape, weight.shape[1]))


def gather(spec: TensorSpec, dim: int, index: TensorSpec, *, sparse_grad: bool = False) -> TensorSpec:
    wrap_dim(dim, len(spec.shape))
    # An empty index may have any shape.
    if index.numel and len(index.shape) != len(spec.shape) and spec.shape and index.shape:
        raise ShapeError(f"gather of {index} from {spec}")
    return like(spec, index.shape)


def one_hot(spec: TensorSpec, num_classes: int = -1) -> TensorSpec:
    return like(spec, (*spec.shape, num_classes), torch.int64)


def index_select(spec: TensorSpec, dim: int, index: TensorSpec) -> TensorSpec:
    if not spec.shape:
        return like(spec, ())
    dim = wrap_dim(dim, len(spec.shape))
    return like(spec, (*spec.shape[:dim], index.numel, *spec.shape[dim + 1 :]))


def index(spec: TensorSpec, indices: Sequence[TensorSpec | None]) -> TensorSpec:
    """Integer tensors as indices; the layout is what TensorIterator gives the restrided source and the indices.

    Source of the algorithm: AdvancedIndex in ATen/native/TensorAdvancedIndexing.cpp.
    """
    given: list[TensorSpec | None] = [*indices, *([None] * (len(spec.shape) - len(indices)))]
    if len(given) != len(spec.shape):
        raise ShapeError(f"too many indices for {spec}")
    used = [i for i, item in enumerate(given) if item is not None]
    if not used:
        return clone(spec)
    adjacent = used == list(range(used[0], used[-1] + 1))
    if adjacent:
        order = list(range(len(given)))
    else:
        order = used + [i for i in range(len(given)) if given[i] is None]
    shape = [spec.shape[i] for i in order]
    strides = [spec.strides[i] for i in order]
    ordered = [given[i] for i in order]
    first = next(i for i, item in enumerate(ordered) if item is not None)
    tensors = [item for item in ordered if item is not None]
    replacement = broadcast([item.shape for item in tensors])
    before = shape[:first]
    after = shape[first + len(tensors) :]
    result_shape = (*before, *replacement, *after)
    source = TensorSpec(
        result_shape,
        (*strides[:first], *((0,) * len(replacement)), *strides[first + len(tensors) :]),
        spec.dtype,
        spec.device,
    )
    operands = [source]
    for item in tensors:
        padded = (*((1,) * len(before)), *replacement, *((1,) * len(after)))
        expanded = expand(item, replacement)
        own = view_strides(expanded, padded) or contiguous_strides(padded)
        operands.append(TensorSpec(padded, own, torch.int64, item.device))
    return TensorSpec(result_shape, iterator_strides(result_shape, operands), spec.dtype, spec.device)


RULES: Mapping[Any, Any] = {
    aten.zeros.default: created,
    aten.ones.default: created,
    aten.empty.memory_format: created,
    aten.rand.default: created,
    aten.randn.default: created,
    aten.full.default: full,
    aten.scalar_tensor.default: scalar_tensor,
    aten.empty_strided.default: empty_strided,
    aten.new_empty_strided.default: new_empty_strided,
    aten.arange.default: arange,
    aten.arange.start: arange_start,
    aten.arange.start_step: arange_step,
    aten.eye.default: eye,
    aten.eye.m: eye,
    aten.zeros_like.default: created_like,
    aten.ones_like.default: created_like,
    aten.empty_like.default: created_like,
    aten.full_like.default: created_like,
    aten.rand_like.default: created_like,
    aten.randn_like.default: created_like,
    aten.bernoulli.p: bernoulli_of_number,
    aten.new_zeros.default: created_new,
    aten.new_ones.default: created_new,
    aten.new_empty.default: created_new,
    aten.new_full.default: created_new,
    aten.clone.default: clone,
    aten._to_copy.default: to_copy,
    aten.tril.default: packed_like,
    aten.triu.default: packed_like,
    aten.flip.default: preserved_like,
    aten.roll.default: roll,
    aten.select_scatter.default: select_scatter,
    aten.slice_scatter.default: slice_scatter,
    aten.index_put.default: preserved_like,
    aten.index_add.default: packed_like,
    aten.index_fill.int_Scalar: preserved_like,
    aten.index_copy.default: packed_like,
    aten.scatter.src: packed_like,
    aten.scatter.value: packed_like,
    aten.scatter_add.default: packed_like,
    aten.scatter_reduce.two: packed_like,
    aten.dropout.default: dropout,
    aten.cat.default: cat,
    aten.stack.default: stack,
    aten.repeat.default: repeat,
    aten.constant_pad_nd.default: constant_pad,
    aten.embedding.default: embedding,
    aten.gather.default: gather,
    aten.one_hot.default: one_hot,
    aten.index_select.default: index_select,
    aten.index.Tensor: index,
}
