"""Memory addressed flatly: buffers as one dimension, places in them as offsets in elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.index import ONE, ZERO, Index, indirects_of, simplify
from lampwork.loops.ir.nodes import Buffer, DType, Load

ITEM_BYTES: dict[DType, int] = {
    "f64": 8,
    "i64": 8,
    "f32": 4,
    "i32": 4,
    "f16": 2,
    "bf16": 2,
    "i16": 2,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "i8": 1,
    "u8": 1,
    "bool": 1,
}
"""Of an element in memory."""


@lru_cache(maxsize=4096)
def flat_buffer(buffer: Buffer) -> Buffer:
    """The memory of a buffer as one dimension."""
    if len(buffer.shape) == 1 and buffer.strides[0] == ONE:
        return buffer
    if any(size.as_int() == 0 for size in buffer.shape):
        return Buffer(buffer.name, buffer.dtype, (ZERO,), (ONE,))
    elements = ONE
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        elements = elements + (size - 1) * stride
    return Buffer(buffer.name, buffer.dtype, (elements,), (ONE,))


def dense_strides(shape: Sequence[Index]) -> tuple[Index, ...]:
    """The strides of a buffer without gaps, the last dimension fastest."""
    strides, stride = list[Index](), ONE
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    return tuple(reversed(strides))


def flat_load(load: Load, extents: Mapping[str, Index]) -> Load:
    """buffer[i, j] -> memory[i*stride + j*stride]."""
    return Load(flat_buffer(load.buffer), (offset_of(load, extents),), load.mask, load.other)


def offset_of(load: Load, extents: Mapping[str, Index]) -> Index:
    """Where in memory a load reads, in elements.

    Raises:
        InvalidLoopsError: an index from data makes no difference to it, and so would not be checked.
    """
    offset = ZERO
    for position, stride in zip(load.index, load.buffer.strides, strict=True):
        if position.terms:
            offset = offset + position * stride
    offset = simplify(offset, extents)
    for position in load.index:
        checked = indirects_of([position]) <= indirects_of([offset])
        if not checked and all(extent.as_int() != 0 for extent in extents.values()):
            raise InvalidLoopsError(f"nothing checks the index {position} of {load.buffer.name}")
    return offset


def stride_of(index: Index, name: str) -> int | None:
    """The stride of a loop variable in an offset: None if it is not affine, large if it is symbolic."""
    factor = index.coefficient(name)
    if factor is None:
        return None
    value = factor.as_int()
    return 1 << 40 if value is None else value
