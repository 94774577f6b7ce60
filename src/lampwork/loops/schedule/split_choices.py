"""Vector loops cut where a choice by their own position changes, so that each part computes one side of it.

    before: vector i < 96:  y[i] = where(i < 64, (a[i] if i < 64), (b[i - 64] if i >= 64)) * s[i]
    after:  vector i < 64:  y[i] = a[i] * s[i]
            vector i < 32:  y[i + 64] = b[i] * s[i + 64]

That is what reading a concatenation comes to. As one loop it reads every piece for each vector, under masks that are
true of one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lampwork.loops.ir.index import ONE, Index, as_index
from lampwork.loops.ir.machine import Machine
from lampwork.loops.ir.nodes import Axis, Const, Expr, IndexValue, Let, Load, Loop, Op, Stmt, Store
from lampwork.loops.ir.traverse import rewrite, walk_once

SHORT_PARTS = 16
"""Vectors of a loop that make up for a part that does not fill one."""
MOST_PARTS = 8
"""Each part is code of its own, which LLVM takes a millisecond for."""


def split_choices(body: Sequence[Stmt], machine: Machine) -> list[Stmt]:
    """The statements with vector loops of constant size cut, where parts fill vectors, or the loop is long."""
    found: list[Stmt] = []
    for stmt in body:
        if not isinstance(stmt, Loop):
            found.append(stmt)
        elif stmt.kind == "vector":
            found += _parts(stmt, machine)
        else:
            found.append(replace(stmt, body=tuple(split_choices(stmt.body, machine))))
    return found


def _parts(loop: Loop, machine: Machine) -> list[Stmt]:
    size = loop.axis.extent.as_int()
    stores = [stmt for stmt in loop.body if isinstance(stmt, Store)]
    if size is None or loop.limit is not None or not all(isinstance(s, Let | Store) for s in loop.body):
        return [loop]
    places = sorted(place for place in _changes(loop) if 0 < place < size)
    if not places or len(places) >= MOST_PARTS or not stores:
        return [loop]
    ends = [*places, size]
    starts = [0, *places]
    least = max(machine.lanes(stmt.buffer.dtype) for stmt in stores)
    short = sum(end - start < least for start, end in zip(starts, ends, strict=True))
    if short * SHORT_PARTS * least > size:
        return [loop]
    return [_part(loop, start, end) for start, end in zip(starts, ends, strict=True)]


def _changes(loop: Loop) -> set[int]:
    """Where some comparison of the loop's position with a number changes."""
    found: set[int] = set()
    for part in walk_once(*loop.body):
        if isinstance(part, Op):
            compared = _compared(part, loop.axis.name)
            if compared is not None:
                found.add(compared)
    return found


def _compared(op: Op, axis: str) -> int | None:
    """The first position at which `position < number`, or its negation, is another than at 0; None for other tests."""
    if op.name not in ("lt", "ge"):
        return None
    left, right = op.args
    if not isinstance(left, IndexValue) or not isinstance(right, Const):
        return None
    rest = left.index - Index.var(axis)
    shift = rest.as_int()
    if shift is None or left.index.coefficient(axis) != ONE:
        return None
    return int(right.value) - shift


def _part(loop: Loop, start: int, end: int) -> Loop:
    """The iterations from start to end, counted from 0."""
    name = loop.axis.name
    moved = Index.var(name) + start

    def on_op(op: Op) -> Expr:
        # What is compared has been moved already: its position 0 is `start`.
        change = _compared(op, name)
        if change is not None:
            if 0 < change < end - start:
                return op
            return Const((change >= end - start) == (op.name == "lt"), "bool")
        return fold_op(op)

    change = {Index: lambda index: index.substitute({name: moved}), Op: on_op, Load: fold_load}
    body = tuple(rewrite(stmt, change) for stmt in loop.body)
    return Loop(Axis(name, as_index(end - start)), loop.kind, body)


def fold_load(load: Load) -> Expr:
    """The load, or what is left of it where its mask is known."""
    if not isinstance(load.mask, Const):
        return load
    return replace(load, mask=None) if load.mask.value else Const(load.other, load.dtype)


def fold_op(op: Op) -> Expr:
    """The operation, or what is left of it where a condition is known."""
    if op.name == "where" and isinstance(op.args[0], Const):
        return op.args[1] if op.args[0].value else op.args[2]
    if op.name == "and":
        for one, other in (op.args, op.args[::-1]):
            if isinstance(one, Const):
                return other if one.value else one
    return op
