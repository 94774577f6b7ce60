"""What the shape rules share: type promotion, broadcasting, and the strides that TensorIterator gives its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lampwork import pristine
from lampwork.errors import CaptureError
from lampwork.graph.spec import TensorSpec, contiguous_strides
from lampwork.graph.symbols import is_float, is_integer

Result = TensorSpec | tuple[TensorSpec | None, ...]
"""What an operator gives; None: a gradient that it was not asked for."""


class ShapeError(CaptureError):
    """Arguments that eager would refuse: the region is given up, so that eager raises its own error."""

    code = "LW122"


# --- type promotion ---------------------------------------------------------------------------------------------------

_COMPLEX_OF = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


def is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def scalar_dtype(value: bool | int | float | complex) -> torch.dtype:
    """The dtype that a Python number has in promotion, as a wrapped number."""
    if isinstance(value, bool):
        return torch.bool
    if is_integer(value):
        return torch.int64
    if is_float(value):
        return pristine.get_default_dtype()
    return _COMPLEX_OF.get(pristine.get_default_dtype(), torch.complex64)


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    """torch's rule for two groups of operands: the lower group only matters if its category is higher."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return _COMPLEX_OF.get(higher, torch.complex64) if lower.is_complex else higher
    if higher is torch.bool or is_floating(lower):
        return pristine.promote_types(higher, lower)
    return higher


def result_type(operands: Sequence[Any]) -> torch.dtype:
    """The dtype of a pointwise result. Operands are TensorSpecs and Python numbers; None is passed over."""
    dims: torch.dtype | None = None
    zeros: torch.dtype | None = None
    wrapped: torch.dtype | None = None
    for operand in operands:
        if isinstance(operand, TensorSpec):
            dtype = operand.dtype
            if operand.shape:
                if dims is not dtype:
                    dims = dtype if dims is None else pristine.promote_types(dims, dtype)
            else:
                zeros = dtype if zeros is None else pristine.promote_types(zeros, dtype)
        elif operand is not None:
            dtype = scalar_dtype(operand)
            wrapped = dtype if wrapped is None else pristine.promote_types(wrapped, dtype)
    if zeros is None and wrapped is None and dims is not None:
        return dims
    found = _combine(dims, _combine(zeros, wrapped))
    if found is None:
        raise ShapeError("no operand has a dtype")
    return found


# --- shapes -----------------------------------------------------------------------------------------------------------


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    first = shapes[0]
    # Lengths first: Python compares tuples of different lengths item by item, which asks needless things of symbols.
    if all(len(shape) == len(first) and shape == first for shape in shapes):
        return first
    rank = max(len(shape) for shape in shapes)
    result = [1] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for i, size in enumerate(shape):
            if size != 1:
                if result[offset + i] not in (1, size):
                    raise ShapeError(f"shapes {list(shapes)} do not broadcast")
                result[offset + i] = size
    return tuple(result)


def wrap_dim(dim: int, rank: int) -> int:
    """dim counted from the front; a tensor without dimensions has dimension 0 and -1 for this purpose."""
    bound = max(rank, 1)
    if not -bound <= dim < bound:
        raise ShapeError(f"dimension {dim} is out of range for {rank} dimensions")
    return dim + bound if dim < 0 else dim


def wrap_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """All dimensions for None or an empty list, as reductions mean it."""
    if isinstance(dims, int):
        return (wrap_dim(dims, rank),)
    if not dims:
        return tuple(range(rank))
    wrapped = tuple(wrap_dim(dim, rank) for dim in dims)
    if len(set(wrapped)) != len(wrapped):
        raise ShapeError(f"a dimension appears twice in {list(dims)}")
    return wrapped


def infer_size(shape: Sequence[int], numel: int) -> tuple[int, ...]:
    """`shape` with its -1, if any, replaced by what `numel` leaves."""
    known = 1
    unknown = -1
    for i, size in enumerate(shape):
        if size == -1:
            if unknown >= 0:
                raise ShapeError("only one size can be -1")
            unknown = i
        else:
            known *= size
    sizes = list(shape)
    if unknown >= 0:
        if known == 0 or numel % known:
            raise ShapeError(f"shape {list(shape)} does not fit {numel} elements")
        sizes[unknown] = numel // known
    elif known != numel:
        raise ShapeError(f"shape {list(shape)} does not fit {numel} elements")
    return tuple(sizes)


# --- strides ----------------------------------------------------------------------------------------------------------


def dense(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, requires_grad: bool = False
) -> TensorSpec:
    """A freshly allocated row-major tensor."""
    sizes = tuple(shape)
    return TensorSpec(sizes, contiguous_strides(sizes), dtype, device, requires_grad)


def like(spec: TensorSpec, shape: Sequence[int], dtype: torch.dtype | None = None) -> TensorSpec:
    """A freshly allocated row-major tensor on the device of `spec`."""
    return dense(shape, dtype or spec.dtype, spec.device)


def channels_last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """NHWC for 4 dimensions, NDHWC for 5. A size of 0 makes strides of 0."""
    order = (0, 2, 3, 1) if len(shape) == 4 else (0, 2, 3, 4, 1)
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def strides_in_order(shape: Sequence[int], innermost_first: Sequence[int]) -> tuple[int, ...]:
    """Dense strides with the dimensions laid out in the given order."""
    strides = [0] * len(shape)
    step = 1
    for dim in innermost_first:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def is_channels_last(spec: TensorSpec) -> bool:
    """torch's `is_contiguous(memory_format=channels_last)`, or channels_last_3d for 5 dimensions. What is empty is only
    if its strides are."""
    if len(spec.shape) not in (4, 5):
        return False
    expected = channels_last_strides(spec.shape)
    return all(
        size == 1 or stride == want
        for size, stride, want in zip(spec.shape, spec.strides, expected, strict=True)
    )


def is_channels_last_strided(spec: TensorSpec) -> bool:
    """torch's `suggest_memory_format() == channels_last`: strides in NHWC order, gaps and size-1 dimensions allowed."""
    rank = len(spec.shape)
    if rank not in (4, 5) or spec.strides[1] == 0:
        return False
    if spec.shape[0] == 0 and rank == 4:
        return False
    smallest = 0
    for dim in (1, 3, 2, 0) if rank == 4 else (1, 4, 3, 2, 0):
        if spec.shape[dim] == 0 or spec.strides[dim] < smallest:
            return False
        # N111 and the like are ambiguous: they count as row-major.
        if dim == 0 and smallest == spec.strides[1]:
            return False
        smallest = spec.strides[dim]
        if spec.shape[dim] > 1:
            smallest *= spec.shape[dim]
    return True


def is_dense(spec: TensorSpec) -> bool:
    """torch's non-overlapping-and-dense: some permutation of the dimensions is row-major, or there is no element."""
    if any(size == 0 for size in spec.shape):
        return True
    expected = 1
    for size, stride in sorted(
        ((s, t) for s, t in zip(spec.shape, spec.strides, strict=True) if s != 1),
        key=lambda pair: pair[1],
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def suggested_strides(spec: TensorSpec) -> tuple[int, ...]:
    """`empty(shape, memory_format=spec.suggest_memory_format())`."""
    return (
        channels_last_strides(spec.shape)
        if is_channels_last_strided(spec)
        else contiguous_strides(spec.shape)
    )


def iterator_strides(shape: tuple[int, ...], operands: Sequence[TensorSpec]) -> tuple[int, ...]:
    """The strides that TensorIterator gives an output of `shape` that it allocates for these operands.

    Source of the algorithm: TensorIteratorBase::reorder_dimensions and ::fast_set_up in ATen.
    """
    if all(len(spec.shape) == len(shape) and spec.shape == shape for spec in operands):
        if all(spec.is_contiguous for spec in operands):
            return contiguous_strides(shape)
        if len(shape) == 4 and all(is_channels_last(spec) for spec in operands):
            return channels_last_strides(shape)
        first = operands[0].strides
        if all(spec.strides == first for spec in operands) and is_dense(operands[0]):
            return first
    order = iteration_order(shape, operands)
    if any(type(size) is int and size == 0 for size in shape) and order != list(range(len(shape)))[::-1]:
        # Of no elements, and out of order: the sizes are multiplied as they are.
        strides = [0] * len(shape)
        step = 1
        for dim in order:
            strides[dim] = step
            step *= shape[dim]
        return tuple(strides)
    return strides_in_order(shape, order)


def iteration_order(shape: tuple[int, ...], operands: Sequence[TensorSpec]) -> list[int]:
    """The dimensions, innermost first, in the order in which TensorIterator lays out a new output."""
    rank = len(shape)
    table: list[tuple[int, ...]] = []
    for spec in operands:
        offset = rank - len(spec.shape)
        table.append(
            (0,) * offset
            + tuple(
                0 if size == 1 and shape[offset + i] != 1 else stride * spec.dtype.itemsize
                for i, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True))
            )
        )

    def compare(dim0: int, dim1: int) -> int:
        for strides in table:
            stride0, stride1 = strides[dim0], strides[dim1]
            if stride0 == 0 or stride1 == 0:
                continue
            if stride0 != stride1:
                return -1 if stride0 < stride1 else 1
            if shape[dim0] > shape[dim1]:
                return 1
        return 0

    order = list(range(rank - 1, -1, -1))
    for i in range(1, rank):
        current = i
        for j in range(i - 1, -1, -1):
            found = compare(order[j], order[current])
            if found > 0:
                order[j], order[current] = order[current], order[j]
                current = j
            elif found < 0:
                break
    return order


def preserved_strides(spec: TensorSpec) -> tuple[int, ...]:
    """What `empty_like` with preserve_format gives: dense strides are kept, others are packed in iteration order."""
    if is_dense(spec):
        return spec.strides
    return strides_in_order(spec.shape, iteration_order(spec.shape, (spec,)))


def format_strides(spec: TensorSpec, memory_format: torch.memory_format | None) -> tuple[int, ...]:
    """Strides of a fresh copy of `spec` in the memory format (None: preserve)."""
    if memory_format is None or memory_format is torch.preserve_format:
        return preserved_strides(spec)
    if memory_format is torch.contiguous_format:
        return contiguous_strides(spec.shape)
    if len(spec.shape) != (4 if memory_format is torch.channels_last else 5):
        raise ShapeError(f"{memory_format} does not fit {len(spec.shape)} dimensions")
    return channels_last_strides(spec.shape)
