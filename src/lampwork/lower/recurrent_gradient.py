"""Recurrent layers that are trained: the operators of graph/recurrence.py become a `Recurrence` that keeps what its
gradient reads, and a `RecurrenceGradient`.

    before:  out, kept, cell = lampwork.recurrence(x, w, h, c, …)
    after:   out, memory, kept = Recurrence(x, w, h, c)

    before:  grad_x, _, grad_h, grad_c = lampwork.recurrence_backward(grad, grad_cell, kept, w, …)
    after:   grad_x, grad_h, memory = RecurrenceGradient(grad, kept, w, grad_cell)

In a direction that is turned, step t of both is at the place `steps - 1 - t` of all tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import GATES, KEPT, Axis, CellKind, Load, Recurrence, RecurrenceGradient
from lampwork.lower.arrays import AXES, Array, at
from lampwork.lower.context import Context
from lampwork.lower.recurrent import memory_of
from lampwork.lower.registry import NotExpressible, Registry

rules = Registry()

_T, _B, _N, _U, _K, _P = (Index.var(name) for name in ("t", "b", "n", "u", "k", "p"))


def _check(ctx: Context, arrays: Sequence[Array | None]) -> None:
    there = [array for array in arrays if array is not None]
    dtypes = {array.dtype for array in there}
    if len(dtypes) != 1 or not dtypes <= ctx.products & {"f32", "f64"}:
        raise NotExpressible(f"a recurrence of {', '.join(sorted(dtypes))}")
    if any(type(array.shape[-1]) is not int or 0 in array.shape for array in there):
        raise NotExpressible("a recurrence of open units, or of nothing")


def _step(steps: int, *, turned: bool) -> Index:
    """The place of step t."""
    return as_index(steps - 1) - _T if turned else _T


def _axis(name: str, extent: int) -> Axis:
    return Axis(name, as_index(extent))


def _rows(ctx: Context, array: Array) -> Array:
    """The array with its last dimension contiguous."""
    strides = array.strides
    if strides is not None and (strides[-1] == 1 or array.shape[-1] == 1):
        return array
    return ctx.materialise(array, "rows")


@rules.lowers("lampwork::recurrence")
def recurrence(
    ctx: Context,
    x: Array,
    w: Array,
    h: Array,
    c: Array | None,
    bias: Array | None,
    kind: CellKind,
    turned: bool,
) -> Sequence[Array]:
    _check(ctx, (x, w, h, c, bias))
    (steps, batch), units = x.shape[:2], h.shape[1]
    x, h = _rows(ctx, x), _rows(ctx, h)
    c, bias = None if c is None else _rows(ctx, c), None if bias is None else _rows(ctx, bias)
    step = _step(steps, turned=turned)
    out = ctx.buffer((steps, batch, units), x.dtype, hint="0")
    memory = memory_of(ctx, kind, 1, batch, units, x.dtype)
    keeps = 1 in ctx.wanted and KEPT[kind]
    kept = ctx.buffer((steps, batch, KEPT[kind] * units), x.dtype, hint="1") if keeps else None
    ctx.emit(
        Recurrence(
            kind,
            out.buffer,
            memory.buffer,
            _axis("d", 1),
            _axis("t", steps),
            _axis("b", batch),
            _axis("n", GATES[kind] * units),
            _axis("u", units),
            _axis("k", units),
            at(x, (step, _B, _N)),
            at(ctx.strided(w), (_N, _K)),
            at(h, (_B, _K)),
            None if c is None else at(c, (_B, _U)),
            None if bias is None else at(bias, (_U,)),
            None,
            (step, _B, _K),
            kept=None if kept is None else kept.buffer,
            kept_index=() if kept is None else (step, _B, _N),
        )
    )
    last = _last_cell(ctx, memory, batch, units) if kind == "lstm" and 2 in ctx.wanted else ctx.nothing()
    return out, ctx.nothing() if kept is None else kept, last


def _last_cell(ctx: Context, memory: Array, batch: int, units: int) -> Array:
    """The cell after the last step, out of the memory of a Recurrence."""
    value = Load(memory.buffer, (as_index(0), AXES[0], as_index(2), AXES[1]))
    return ctx.map((batch, units), value, hint="2")


@rules.lowers("lampwork::recurrence_backward")
def recurrence_backward(
    ctx: Context,
    grad: Array,
    grad_cell: Array | None,
    kept: Array,
    w: Array,
    kind: CellKind,
    turned: bool,
) -> Sequence[Array]:
    _check(ctx, (grad, grad_cell, kept, w))
    steps, batch, units = grad.shape
    grad, kept = _rows(ctx, grad), _rows(ctx, kept)
    grad_cell = None if grad_cell is None else _rows(ctx, grad_cell)
    step = _step(steps, turned=turned)
    shape = (steps, batch, GATES[kind] * units)
    out = ctx.buffer(shape, grad.dtype, hint="0")
    sums = ctx.buffer(shape, grad.dtype, hint="1") if kind == "gru" else None
    first = ctx.buffer((batch, units), grad.dtype, hint="2")
    memory = ctx.buffer((batch, units), grad.dtype, hint="3")
    ctx.emit(
        RecurrenceGradient(
            kind,
            out.buffer,
            None if sums is None else sums.buffer,
            first.buffer,
            memory.buffer,
            _axis("t", steps),
            _axis("b", batch),
            _axis("n", shape[2]),
            _axis("u", units),
            _axis("p", kept.shape[2]),
            at(grad, (step, _B, _U)),
            at(kept, (step, _B, _P)),
            at(ctx.strided(w), (_N, _U)),
            None if grad_cell is None else at(grad_cell, (_B, _U)),
            (step, _B, _N),
        )
    )
    return (
        out,
        ctx.nothing() if sums is None else sums,
        first,
        memory if kind == "lstm" else ctx.nothing(),
    )
