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
from lampwork.records import record


def next_state(
    b: Builder,
    kind: CellKind,
    x: Sequence[Value],
    sums: Sequence[Value],
    before: Value | None,
    bias: Value | None,
    *,
    keeps: bool = False,
) -> tuple[Value, Value | None, tuple[Value, ...]]:
    """(the state, of an lstm the cell, what the gradient reads if `keeps`) after one step.

    x, sums: for each gate the product with the input, and with the state. before: the cell of an lstm, the state of a
    gru. bias: what a gru adds to the last of `sums`.
    """
    if kind == "lstm":
        assert before is not None
        gates = [b.add(left, right) for left, right in zip(sums, x, strict=True)]
        return _lstm_kept(b, gates, before) if keeps else _lstm(b, gates, before)
    if kind == "gru":
        assert before is not None
        reset = sigmoid_denominator(b, b.add(sums[0], x[0]))
        update = sigmoid_denominator(b, b.add(sums[1], x[1]))
        added = sums[2] if bias is None else b.add(sums[2], bias)
        new = b.div(*tanh_fraction(b, b.add(b.div(added, reset), x[2])))
        state = b.add(b.div(b.sub(before, new), update), new)
        kept = (_inverse(b, reset), _inverse(b, update), new, added, before) if keeps else ()
        return state, None, kept
    total = b.add(sums[0], x[0])
    state = (
        b.div(*tanh_fraction(b, total)) if kind == "tanh" else maximum(b, total, b.const(0.0, total.dtype))
    )
    return state, None, ()


def _lstm(b: Builder, gates: Sequence[Value], before: Value) -> tuple[Value, Value, tuple[Value, ...]]:
    reads, forgets, new, writes = gates
    numerator, denominator = tanh_fraction(b, new)
    added = b.div(numerator, b.mul(sigmoid_denominator(b, reads), denominator))
    cell = b.add(b.div(before, sigmoid_denominator(b, forgets)), added)
    numerator, denominator = tanh_fraction(b, cell)
    return b.div(numerator, b.mul(sigmoid_denominator(b, writes), denominator)), cell, ()


def _lstm_kept(b: Builder, gates: Sequence[Value], before: Value) -> tuple[Value, Value, tuple[Value, ...]]:
    reads, forgets, writes = (_inverse(b, sigmoid_denominator(b, gates[n])) for n in (0, 1, 3))
    new = b.div(*tanh_fraction(b, gates[2]))
    cell = b.fma(forgets, before, b.mul(reads, new))
    numerator, denominator = tanh_fraction(b, cell)
    state = b.div(b.mul(writes, numerator), denominator)
    return state, cell, (reads, forgets, new, writes, before)


def _inverse(b: Builder, x: Value) -> Value:
    return b.div(b.const(1.0, x.dtype), x)


@record
class CellGradient:
    """x: for each gate the gradient of its product with the input. sums: that with the state, where it is another.
    carried: of the cell before an lstm's step; what a gru's state before the step gets besides the product."""

    x: Sequence[Value]
    sums: Sequence[Value]
    carried: Value | None


def cell_gradient(
    b: Builder, kind: CellKind, state: Value, kept: Sequence[Value], carried: Value | None
) -> CellGradient:
    """The gradient of one step. state: that of the state after it. carried: that of an lstm's cell after it."""
    one = b.const(1.0, state.dtype)

    def of_sigmoid(gradient: Value, value: Value) -> Value:
        return b.mul(gradient, b.mul(value, b.sub(one, value)))

    def of_tanh(gradient: Value, value: Value) -> Value:
        return b.mul(gradient, b.sub(one, b.mul(value, value)))

    if kind == "lstm":
        assert carried is not None
        reads, forgets, new, writes, before = kept
        after = b.div(*tanh_fraction(b, b.fma(forgets, before, b.mul(reads, new))))
        cell = b.add(carried, of_tanh(b.mul(state, writes), after))
        gates = (
            of_sigmoid(b.mul(cell, new), reads),
            of_sigmoid(b.mul(cell, before), forgets),
            of_tanh(b.mul(cell, reads), new),
            of_sigmoid(b.mul(state, after), writes),
        )
        return CellGradient(gates, gates, b.mul(cell, forgets))
    if kind == "gru":
        reset, update, new, last, before = kept
        of_new = of_tanh(b.mul(state, b.sub(one, update)), new)
        of_reset = of_sigmoid(b.mul(of_new, last), reset)
        of_update = of_sigmoid(b.mul(state, b.sub(before, new)), update)
        sums = (of_reset, of_update, b.mul(of_new, reset))
        return CellGradient((of_reset, of_update, of_new), sums, b.mul(state, update))
    (result,) = kept
    if kind == "tanh":
        gates = (of_tanh(state, result),)
    else:
        zero = b.const(0.0, state.dtype)
        gates = (b.select(b.cmp("le", result, zero), zero, state),)
    return CellGradient(gates, gates, None)


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
