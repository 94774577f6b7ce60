"""Code for lanes that are rarely there, behind a branch."""

from __future__ import annotations

from collections.abc import Callable

from lampwork.codegen.llvm.builder import Builder, Value


def unless_any(b: Builder, condition: Value, usual: Value, rare: Callable[[], Value]) -> Value:
    """`usual`, or what `rare` emits, by a branch, if `condition` holds in a lane."""
    any_ = condition
    if condition.lanes > 1:
        any_ = b.emit(f"call i1 @llvm.vector.reduce.or.v{condition.lanes}i1({b.typed(condition)})", "bool", 1)
    elsewhere, done = b.new_label("rare"), b.new_label("usual")
    before = b.block
    b.branch_if(any_, elsewhere, done)
    b.start(elsewhere)
    with b.scope():
        other = rare()
    inside = b.block
    b.branch(done)
    b.start(done)
    text = f"phi {usual.type} [ {other.text}, %{inside} ], [ {usual.text}, %{before} ]"
    return b.emit(text, usual.dtype, usual.lanes, pure=False)
