"""The reference evaluation of a `Recurrence` and its gradient: step by step, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lampwork.loops.ir.nodes import GATES, KEPT, CellKind
from lampwork.records import record

Array = Any


@record
class Operands:
    """The operands of a Recurrence over all of their axes, in order: x (d, t, b, n), w (d, k, n), h (d, b, k),
    c (d, b, u), bias (d, u), project (d, u, k); of a packed sequence x (d, s, n), count (t) and start (t)."""

    x: Array
    w: Array
    h: Array
    c: Array | None
    bias: Array | None
    project: Array | None
    count: Array | None = None
    start: Array | None = None

    def rows(self) -> list[slice]:
        """The rows of each step, where steps and the batch are one axis."""
        if self.count is None or self.start is None:
            steps, batch = self.x.shape[1:3]
            return [slice(t * batch, (t + 1) * batch) for t in range(steps)]
        return [slice(at, at + many) for at, many in zip(self.start, self.count, strict=True)]


def run_recurrence(kind: CellKind, given: Operands) -> tuple[Array, Array | None, Array]:
    """(the states (d, t, b, k), or (d, s, k), the last cells (d, b, u), what a gradient reads (d, t, b, p))."""
    directions, size = given.x.shape[0], given.h.shape[-1]
    x = given.x.reshape(directions, -1, given.x.shape[-1])
    out = np.zeros((*x.shape[:2], size), x.dtype)
    last = None if given.c is None else given.c.copy()
    units = given.w.shape[-1] // GATES[kind]
    kept = np.zeros((*x.shape[:2], KEPT[kind] * units), x.dtype)
    for d in range(directions):
        states = given.h[d].copy()
        bias = None if given.bias is None else given.bias[d]
        for at in given.rows()[:: -1 if d else 1]:
            there = at.stop - at.start
            sums = np.matmul(states[:there], given.w[d])
            before = (states if last is None else last[d])[:there]
            state, cell, parts = _cell(kind, x[d, at], sums, before, bias)
            if parts:
                kept[d, at] = np.concatenate(parts, axis=-1)
            if last is not None:
                last[d, :there] = cell
            if given.project is not None:
                state = np.matmul(state, given.project[d])
            states[:there] = out[d, at] = state
    outer = given.x.shape[:-1]
    return out.reshape(*outer, size), last, kept.reshape(*outer, kept.shape[-1])


def _cell(
    kind: CellKind, x: Array, sums: Array, before: Array, bias: Array | None
) -> tuple[Array, Array | None, tuple[Array, ...]]:
    if kind == "lstm":
        reads, forgets, new, writes = np.split(sums + x, 4, axis=-1)
        reads, forgets, new, writes = _sigmoid(reads), _sigmoid(forgets), np.tanh(new), _sigmoid(writes)
        cell = forgets * before + reads * new
        return writes * np.tanh(cell), cell, (reads, forgets, new, writes, before)
    if kind == "gru":
        (x_reset, x_update, x_new), (reset, update, new) = np.split(x, 3, axis=-1), np.split(sums, 3, axis=-1)
        reset, update = _sigmoid(reset + x_reset), _sigmoid(update + x_update)
        last = new if bias is None else new + bias
        new = np.tanh(x_new + reset * last)
        return new + update * (before - new), None, (reset, update, new, last, before)
    return (np.tanh(sums + x) if kind == "tanh" else np.maximum(sums + x, 0)), None, ()


def run_gradient(
    kind: CellKind, grad: Array, kept: Array, w: Array, cell: Array | None
) -> tuple[Array, Array, Array, Array]:
    """The gradients of x and of the product with the state (t, b, n), of h and of c (b, u).

    grad (t, b, u), kept (t, b, p), w (n, u), cell (b, u).
    """
    steps, batch, units = grad.shape
    outs = [np.zeros((steps, batch, w.shape[0]), grad.dtype) for _ in range(2)]
    state = np.zeros((batch, units), grad.dtype)
    cell = np.zeros_like(state) if cell is None else cell
    for t in reversed(range(steps)):
        parts = np.split(kept[t], kept.shape[-1] // units, axis=-1)
        of_x, of_sums, more, cell = _cell_gradient(kind, grad[t] + state, parts, cell)
        outs[0][t], outs[1][t] = (np.concatenate(each, axis=-1) for each in (of_x, of_sums))
        state = outs[1][t] @ w + more
    return outs[0], outs[1], state, cell


def _cell_gradient(
    kind: CellKind, state: Array, kept: Sequence[Array], cell: Array
) -> tuple[Sequence[Array], Sequence[Array], Array, Array]:
    """(for each gate the gradient of x, and of the product; that of the state before besides; that of the cell)."""
    nothing = np.zeros_like(state)
    if kind == "lstm":
        reads, forgets, new, writes, before = kept
        after = np.tanh(forgets * before + reads * new)
        cell = cell + state * writes * (1 - after * after)
        gates = (
            cell * new * reads * (1 - reads),
            cell * before * forgets * (1 - forgets),
            cell * reads * (1 - new * new),
            state * after * writes * (1 - writes),
        )
        return gates, gates, nothing, cell * forgets
    if kind == "gru":
        reset, update, new, last, before = kept
        of_new = state * (1 - update) * (1 - new * new)
        of_reset = of_new * last * reset * (1 - reset)
        of_update = state * (before - new) * update * (1 - update)
        return (
            (of_reset, of_update, of_new),
            (of_reset, of_update, of_new * reset),
            state * update,
            nothing,
        )
    (result,) = kept
    gates = (state * (1 - result * result) if kind == "tanh" else np.where(result <= 0, 0, state),)
    return gates, gates, nothing, nothing


def _sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    with np.errstate(over="ignore"):
        return one / (one + np.exp(-x))


def unpacked(panels: Array, gates: int, units: int) -> Array:
    """(d, panel, part, k, gate * width + lane) -> (d, k, (part, gate) * units + unit)."""
    directions, count, parts, depth, columns = panels.shape
    width = columns * parts // gates
    split = panels.reshape(directions, count, parts, depth, gates // parts, width)
    joined = split.transpose(0, 3, 2, 4, 1, 5).reshape(directions, depth, gates, count * width)
    return joined[..., :units].reshape(directions, depth, gates * units)
