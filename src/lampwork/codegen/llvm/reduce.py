"""What a reduction carries from step to step, for each reduction operator.

A state is a list of values: the accumulator, and beside it the position of the winner (argmax, argmin) or whether a
NaN was seen (max, min of floats: the instruction drops NaN, so it is remembered apart). `merge` joins two states; a
vector state is reduced to a scalar one by merging its halves.
"""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.types import BITS, is_float, is_unsigned
from lampwork.loops.ir.nodes import DType, ReduceOp
from lampwork.records import record

State = list[Value]

NOWHERE = (1 << 63) - 1  # the position before any value was seen: later than every other


@record
class Reduction:
    """A reduction by `op` over values of `dtype`."""

    op: ReduceOp
    dtype: DType
    has_maximum: bool = False
    """Of the target: NaN need not be remembered apart then."""

    @property
    def has_position(self) -> bool:
        return self.op in ("argmax", "argmin")

    @property
    def _tracks_nan(self) -> bool:
        return self.op in ("max", "min") and is_float(self.dtype) and not self._by_instruction

    @property
    def _by_instruction(self) -> bool:
        return self.has_maximum and self.dtype == "f32" and self.op in ("max", "min")

    def initial(self, b: Builder, lanes: int) -> State:
        state = [b.widen(b.const(self.neutral, self.dtype), lanes)]
        if self.has_position:
            state.append(b.widen(b.const(NOWHERE, "i64"), lanes))
        elif self._tracks_nan:
            state.append(b.widen(b.const(False, "bool"), lanes))
        return state

    @property
    def neutral(self) -> float | int | bool:
        """The value that changes nothing."""
        if self.op in ("sum", "prod"):
            one = self.op == "prod"
            return float(one) if is_float(self.dtype) else int(one)
        if self.op in ("any", "all"):
            return self.op == "all"
        largest = self.op in ("max", "argmax")
        if is_float(self.dtype):
            return float("-inf") if largest else float("inf")
        if self.dtype == "bool":
            return not largest
        bits = BITS[self.dtype]
        low, high = (
            (0, (1 << bits) - 1) if is_unsigned(self.dtype) else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        )
        return low if largest else high

    def add(self, b: Builder, state: State, value: Value, position: Value | None) -> State:
        """The state after one more value (at `position`, for argmax and argmin)."""
        if self.has_position:
            # Values come in order of their positions: an equal one is later.
            assert position is not None, f"{self.op} needs the position of each value"
            better = self._beats(b, value, state[0])
            return [b.select(better, value, state[0]), b.select(better, position, state[1])]
        if self._tracks_nan:
            pick = b.larger if self.op == "max" else b.smaller
            return [pick(value, state[0]), b.or_(state[1], b.cmp("uno", value, value))]
        return [self._combine(b, state[0], value)]

    def merge(self, b: Builder, left: State, right: State) -> State:
        """The state after the values of both; `left`'s come first."""
        if self.has_position:
            better = self._beats(b, right[0], left[0])
            equal = b.cmp("eq", right[0], left[0])
            if is_float(self.dtype):
                equal = b.or_(equal, b.and_(b.cmp("uno", right[0], right[0]), b.cmp("uno", left[0], left[0])))
            earlier = b.and_(equal, b.cmp("lt", right[1], left[1]))
            take = b.or_(better, earlier)
            return [b.select(take, right[0], left[0]), b.select(take, right[1], left[1])]
        if self._tracks_nan:
            pick = b.larger if self.op == "max" else b.smaller
            return [pick(right[0], left[0]), b.or_(left[1], right[1])]
        return [self._combine(b, left[0], right[0])]

    def across(self, b: Builder, state: State) -> State:
        """A vector state reduced to a scalar one, by halves; whether any lane saw NaN is one instruction."""
        if self._tracks_nan and state[1].lanes > 1:
            flags = state[1]
            seen = b.emit(f"call i1 @llvm.vector.reduce.or.v{flags.lanes}i1({b.typed(flags)})", "bool", 1)
            while (lanes := state[0].lanes // 2) > 0:
                low, high = (_part(b, state[0], start, lanes) for start in (0, lanes))
                state = [b.larger(high, low) if self.op == "max" else b.smaller(high, low)]
            return [state[0], seen]
        while state[0].lanes > 1:
            half = state[0].lanes // 2
            state = self.merge(
                b, [_part(b, v, 0, half) for v in state], [_part(b, v, half, half) for v in state]
            )
        return state

    def result(self, b: Builder, state: State) -> Value:
        if self.has_position:
            # Where no value beats the neutral one, all are equal to it.
            return b.select(b.cmp("eq", state[1], NOWHERE), 0, state[1])
        if self._tracks_nan and state[0].lanes == 1:
            # A conditional move of integers: that of floats goes by a mask, through a byte that turns wait for.
            bits, nan = ("i64", 0x7FF8 << 48) if self.dtype == "f64" else ("i32", 0x7FC0 << 16)
            return b.bitcast(b.select(state[1], nan, b.bitcast(state[0], bits)), state[0].dtype)
        if self._tracks_nan:
            return b.select(state[1], float("nan"), state[0])
        return state[0]

    def accept(self, b: Builder, value: Value, lanes: int) -> Value:
        """A value as this reduction takes it: in its dtype, in all lanes."""
        return b.widen(convert(b, value, self.dtype), lanes)

    def _beats(self, b: Builder, value: Value, best: Value) -> Value:
        if is_float(self.dtype):
            # Larger, or NaN: but the first NaN stays.
            larger = b.cmp("ugt" if self.op == "argmax" else "ult", value, best)
            return b.and_(larger, b.cmp("ord", best, best))
        return b.cmp("gt" if self.op == "argmax" else "lt", value, best)

    def _combine(self, b: Builder, x: Value, y: Value) -> Value:
        if self.op == "sum":
            return b.add(x, y)
        if self.op == "prod":
            return b.mul(x, y)
        if self.op == "any":
            return b.or_(x, y)
        if self.op == "all":
            return b.and_(x, y)
        if self.dtype == "bool":
            return b.or_(x, y) if self.op == "max" else b.and_(x, y)
        if self._by_instruction:
            return b.intrinsic("maximum" if self.op == "max" else "minimum", x, y)
        return b.larger(y, x) if self.op == "max" else b.smaller(y, x)


def _part(b: Builder, value: Value, start: int, lanes: int) -> Value:
    if lanes == 1:
        return b.emit(f"extractelement {value.type} {value.text}, i64 {start}", value.dtype, 1)
    order = ", ".join(f"i32 {start + i}" for i in range(lanes))
    return b.emit(
        f"shufflevector {value.type} {value.text}, {value.type} poison, <{lanes} x i32> <{order}>",
        value.dtype,
        lanes,
    )
