"""Code for lanes that are rarely there, behind a branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.types import REGISTER, vector_type


def unless_any(b: Builder, condition: Value, usual: Value, rare: Callable[[], Value]) -> Value:
    """`usual`, or what `rare` emits, by a branch, if `condition` holds in a lane."""
    return unless_any_of(b, condition, (usual,), lambda: (rare(),))[0]


def unless_any_of(
    b: Builder, condition: Value, usual: Sequence[Value], rare: Callable[[], Sequence[Value]]
) -> list[Value]:
    """`unless_any` of several values at once."""
    any_ = condition
    if condition.lanes > 1:
        any_ = b.emit(f"call i1 @llvm.vector.reduce.or.v{condition.lanes}i1({b.typed(condition)})", "bool", 1)
    elsewhere, done = b.new_label("rare"), b.new_label("usual")
    before = b.block
    b.branch_if(any_, elsewhere, done)
    b.start(elsewhere)
    with b.scope():
        others = rare()
    inside = b.block
    b.branch(done)
    b.start(done)
    found: list[Value] = []
    for value, other in zip(usual, others, strict=True):
        text = f"phi {value.type} [ {other.text}, %{inside} ], [ {value.text}, %{before} ]"
        found.append(b.emit(text, value.dtype, value.lanes, pure=False))
    return found


def lane_by_lane(b: Builder, function: Callable[..., Sequence[Value]], *args: Value) -> list[Value]:
    """function(b, *args), called with scalars: for each lane, where there are several.

    Through memory and in a loop: unrolled over 16 lanes it would be most of the code of a kernel.
    """
    lanes = max(arg.lanes for arg in args)
    if lanes == 1:
        return list(function(b, *args))
    rooms = [_room(b, arg, lanes) for arg in args]
    for room, arg in zip(rooms, args, strict=True):
        b.line(f"store {b.typed(arg, lanes)}, ptr {room}, align 64")
    with b.loop(b.const(0, "i64"), b.const(lanes, "i64"), 1, runs=True) as loop:
        items: list[Value] = []
        for room, arg in zip(rooms, args, strict=True):
            place = b.element(room, arg.dtype, loop.index).text
            items.append(b.emit(f"load {REGISTER[arg.dtype]}, ptr {place}", arg.dtype, 1, pure=False))
        results = function(b, *items)
        found = [_room(b, result, lanes) for result in results]
        for room, result in zip(found, results, strict=True):
            b.line(f"store {b.typed(result)}, ptr {b.element(room, result.dtype, loop.index).text}")
    return [
        b.emit(
            f"load {vector_type(REGISTER[result.dtype], lanes)}, ptr {room}, align 64",
            result.dtype,
            lanes,
            pure=False,
        )
        for room, result in zip(found, results, strict=True)
    ]


def _room(b: Builder, value: Value, lanes: int) -> str:
    return b.alloca(vector_type(REGISTER[value.dtype], lanes), 64)
