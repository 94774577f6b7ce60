"""The cells of recurrent layers, over vectors of units, and what meets the end of the units."""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.emit_ops import maximum
from lampwork.codegen.llvm.templates.ints import place
from lampwork.codegen.llvm.templates.microkernel import load_vector, store_vector
from lampwork.codegen.llvm.types import itemsize, mangled, memory_type, vector_type
from lampwork.codegen.llvm.vecmath_fractions import sigmoid_denominator, tanh_fraction
from lampwork.loops.ir.nodes import CellKind, DType


def next_state(
    b: Builder,
    kind: CellKind,
    x: Sequence[Value],
    sums: Sequence[Value],
    before: Value | None,
    bias: Value | None,
) -> tuple[Value, Value | None]:
    """(the state, of an lstm the cell) after one step.

    x, sums: for each gate the product with the input, and with the state. before: the cell of an lstm, the state of a
    gru. bias: what a gru adds to the last of `sums`.
    """
    if kind == "lstm":
        assert before is not None
        reads, forgets, new, writes = (b.add(left, right) for left, right in zip(sums, x, strict=True))
        numerator, denominator = tanh_fraction(b, new)
        added = b.div(numerator, b.mul(sigmoid_denominator(b, reads), denominator))
        cell = b.add(b.div(before, sigmoid_denominator(b, forgets)), added)
        numerator, denominator = tanh_fraction(b, cell)
        return b.div(numerator, b.mul(sigmoid_denominator(b, writes), denominator)), cell
    if kind == "gru":
        assert before is not None
        reset = sigmoid_denominator(b, b.add(sums[0], x[0]))
        update = sigmoid_denominator(b, b.add(sums[1], x[1]))
        added = sums[2] if bias is None else b.add(sums[2], bias)
        new = b.div(*tanh_fraction(b, b.add(b.div(added, reset), x[2])))
        return b.add(b.div(b.sub(before, new), update), new), None
    total = b.add(sums[0], x[0])
    return (
        b.div(*tanh_fraction(b, total)) if kind == "tanh" else maximum(b, total, b.const(0.0, total.dtype))
    ), None


def load_part(b: Builder, dtype: DType, lanes: int, there: int, pointer: str) -> Value:
    """A vector whose first `there` lanes are in memory; the others are 0 and are not read."""
    if there == lanes:
        return load_vector(b, dtype, lanes, pointer)
    type_ = vector_type(memory_type(dtype), lanes)
    return b.emit(
        f"call {type_} @llvm.masked.load.{mangled(memory_type(dtype), lanes)}.p0(ptr {pointer}, "
        f"i32 {itemsize(dtype)}, {_first(there, lanes)}, {type_} zeroinitializer)",
        dtype,
        lanes,
        pure=False,
    )


def store_part(b: Builder, value: Value, there: int, pointer: str) -> None:
    """Store the first `there` lanes."""
    if there == value.lanes:
        store_vector(b, value, pointer)
        return
    if itemsize(value.dtype) == 2:
        # LLVM 22 makes of masked stores of few known lanes, narrowed from 32 bits to 16, stores of 32 bits.
        for lane in range(there):
            one = b.emit(f"extractelement {b.typed(value)}, i32 {lane}", value.dtype, 1)
            store_vector(b, one, place(b, pointer, lane, value.dtype))
        return
    b.line(
        f"call void @llvm.masked.store.{mangled(memory_type(value.dtype), value.lanes)}.p0({b.typed(value)}, "
        f"ptr {pointer}, i32 {itemsize(value.dtype)}, {_first(there, value.lanes)})"
    )


def _first(there: int, lanes: int) -> str:
    """A mask of the first lanes."""
    items = ", ".join(f"i1 {'true' if lane < there else 'false'}" for lane in range(lanes))
    return f"<{lanes} x i1> <{items}>"
