"""Loads of elements that lie a small step apart: the vectors that hold them, and shuffles, instead of a gather.

    before: gather x[2*i]                               lanes of their own addresses, an element each
    after:  a = x[2*i ...], b = x[2*i + lanes - 1 ...]; shuffle of a and b

The last vector begins early enough to end with the last element that is wanted: nothing is read past it.
"""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.types import itemsize, mangled, memory_type, vector_type
from lampwork.loops.ir.nodes import DType

MOST_STEP = 4
"""A vector and a shuffle for each element of the step: beyond that a gather is no slower."""


def is_loadable(step: int | Value, lanes: int, mask: Value | None, has_masks: bool) -> bool:
    """Whether `load_strided` has code for elements `step` apart that pays."""
    small = isinstance(step, int) and 2 <= step <= MOST_STEP and lanes >= MOST_STEP
    return small and lanes & (lanes - 1) == 0 and (mask is None or has_masks)


def load_strided(
    b: Builder, base: str, dtype: DType, first: Value, step: int, lanes: int, mask: Value | None, pure: bool
) -> Value:
    """Lane l holds element first + l * step of `base`, in the form that it has in memory (a bool as u8); lanes that
    `mask` excludes hold anything, and memory that is needed for them alone is not read."""
    last = (lanes - 1) * (step - 1)
    type_ = vector_type(memory_type(dtype), lanes)
    stored: DType = "u8" if dtype == "bool" else dtype
    result: Value | None = None
    for part in range(step):
        start = min(part * lanes, last)
        address = b.element(base, dtype, b.add(first, start) if start else first).text
        if mask is None:
            text = f"load {type_}, ptr {address}, align {itemsize(dtype)}"
        else:
            wanted = _mask_of(b, mask, start, step, lanes)
            text = (
                f"call {type_} @llvm.masked.load.{mangled(memory_type(dtype), lanes)}.p0(ptr {address}, "
                f"i32 {itemsize(dtype)}, {wanted.type} {wanted.text}, {type_} zeroinitializer)"
            )
        vector = b.emit(text, stored, lanes, pure=pure)
        result = _joined(b, result, vector, part, start, step, lanes)
    assert result is not None
    return result


def _mask_of(b: Builder, mask: Value, start: int, step: int, lanes: int) -> Value:
    """The mask of the vector that begins `start` elements after the first one."""
    places = [start + lane for lane in range(lanes)]
    order = ", ".join(f"i32 {p // step if p % step == 0 else lanes}" for p in places)
    return b.emit(
        f"shufflevector {mask.type} {mask.text}, {mask.type} zeroinitializer, <{lanes} x i32> <{order}>",
        "bool",
        lanes,
    )


def _joined(
    b: Builder, result: Value | None, vector: Value, part: int, start: int, step: int, lanes: int
) -> Value:
    """`result` with the lanes that vector number `part` holds; the first one alone is put in order."""
    order: list[str] = []
    for lane in range(lanes):
        owner = min(lane * step // lanes, step - 1)
        if owner == part:
            order.append(f"i32 {lane * step - start + (0 if result is None else lanes)}")
        else:
            order.append(f"i32 {lane}" if owner < part else "i32 poison")
    left = vector if result is None else result
    right = "poison" if result is None else vector.text
    return b.emit(
        f"shufflevector {left.type} {left.text}, {left.type} {right}, <{lanes} x i32> <{', '.join(order)}>",
        vector.dtype,
        lanes,
    )
