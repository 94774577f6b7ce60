"""The statements of a phase: its loops, locals, stores and reductions."""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.nodes import (
    Axis,
    DType,
    Let,
    Local,
    Loop,
    LoopKind,
    ReduceLoop,
    ReduceOp,
    Reducer,
    Stmt,
    Store,
)
from lampwork.loops.schedule.nest import Item, Phase


def emit_phase(phase: Phase, vector: Axis | None) -> list[Stmt]:
    """The loops over the phase's inner axes, `vector` (one of them, or None) innermost and vectorized.

    A phase without inner axes gives plain statements, to stand inside somebody else's loops.
    """
    axes = [axis for axis in phase.inner if axis is not vector]
    if vector is not None:
        axes.append(vector)
    body: list[Stmt] = []
    reductions = [item for item in phase.items if item.op is not None]
    for item in phase.items:
        if item.op is None:
            body.extend(_let_and_store(item))
    if not reductions:
        return _plain_loops(axes, body, vector)
    if not axes:
        return [*body, *_reduced_once(reductions), *_finish(reductions)]
    known = {_what(item): item for item in reversed(reductions)}
    same = [
        Let(item.acc, Local(known[_what(item)].acc, _acc_dtype(item)))
        for item in reductions
        if known[_what(item)] is not item
    ]
    return [_reduce_loops(axes, body, list(known.values())[::-1], vector), *same, *_finish(reductions)]


def _what(item: Item) -> tuple[object, ...]:
    """What a reduction is: one that comes twice is made once."""
    return item.op, item.value, item.position


def _acc_dtype(item: Item) -> DType:
    return "i64" if item.op in ("argmax", "argmin") else _value_dtype(item)


def _let_and_store(item: Item) -> list[Stmt]:
    local = Local(item.name, item.buffer.dtype)
    statements: list[Stmt] = [Let(item.name, item.value)]
    if item.target is not None:
        statements.append(Store(item.target.buffer, item.target.index, local, item.combine))
    return statements


def _plain_loops(axes: Sequence[Axis], body: list[Stmt], vector: Axis | None) -> list[Stmt]:
    for axis in reversed(axes):
        body = [Loop(axis, "vector" if axis is vector else "serial", tuple(body))]
    return body


def _reduce_loops(
    axes: Sequence[Axis], body: list[Stmt], reductions: Sequence[Item], vector: Axis | None
) -> ReduceLoop:
    """Nested reductions: each level reduces what the level inside of it has reduced."""
    depth = len(axes) - 1
    positions = {item.position for item in reductions if item.position is not None}
    if positions and (depth or len(positions) > 1):
        raise InvalidLoopsError("argmax and argmin need one loop and one position")
    position = next(iter(positions), None)
    reducers = tuple(
        Reducer(_level(item, depth), _op(item), item.value, _value_dtype(item)) for item in reductions
    )
    kind: LoopKind = "vector" if axes[-1] is vector else "serial"
    loop = ReduceLoop(axes[-1], kind, tuple(body), reducers, position)
    for level in range(depth - 1, -1, -1):
        outer = tuple(
            Reducer(
                _level(item, level),
                _op(item),
                Local(_level(item, level + 1), _value_dtype(item)),
                _value_dtype(item),
            )
            for item in reductions
        )
        loop = ReduceLoop(axes[level], "serial", (loop,), outer)
    return loop


def _level(item: Item, level: int) -> str:
    return item.acc if level == 0 else f"{item.acc}_{level}"


def _op(item: Item) -> ReduceOp:
    if item.op is None:
        raise InvalidLoopsError(f"{item.name} is not a reduction")
    return item.op


def _value_dtype(item: Item) -> DType:
    return item.value.dtype


def _reduced_once(reductions: Sequence[Item]) -> list[Stmt]:
    """Reductions over a single point."""
    return [Let(item.acc, item.value if item.position is None else item.position) for item in reductions]


def _finish(reductions: Sequence[Item]) -> list[Stmt]:
    statements: list[Stmt] = []
    for item in reductions:
        if item.finish is None:
            raise InvalidLoopsError(f"the reduction {item.name} has no finish")
        statements.append(Let(item.name, item.finish))
        if item.target is not None:
            statements.append(
                Store(item.target.buffer, item.target.index, Local(item.name, item.buffer.dtype))
            )
    return statements
