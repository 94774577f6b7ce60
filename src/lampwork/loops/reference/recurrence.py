"""The reference evaluation of a `Recurrence`: step by step, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from lampwork.loops.ir.nodes import CellKind
from lampwork.records import record

Array = Any


@record
class Operands:
    """The operands of a Recurrence over all of their axes, in order: x (d, t, b, n), w (d, k, n), h (d, b, k),
    c (d, b, u), bias (d, u), project (d, u, k)."""

    x: Array
    w: Array
    h: Array
    c: Array | None
    bias: Array | None
    project: Array | None


def run_recurrence(kind: CellKind, given: Operands) -> tuple[Array, Array | None]:
    """(the states (d, t, b, k), the last cells (d, b, u))."""
    directions, steps = given.x.shape[:2]
    out = np.zeros((directions, steps, *given.h.shape[1:]), given.x.dtype)
    last = None if given.c is None else given.c.copy()
    for d in range(directions):
        state = given.h[d]
        for number in range(steps):
            t = steps - 1 - number if d else number
            sums = np.matmul(state, given.w[d])
            before = state if last is None else last[d]
            state, cell = _cell(
                kind, given.x[d, t], sums, before, None if given.bias is None else given.bias[d]
            )
            if last is not None:
                last[d] = cell
            if given.project is not None:
                state = np.matmul(state, given.project[d])
            out[d, t] = state
    return out, last


def _cell(
    kind: CellKind, x: Array, sums: Array, before: Array, bias: Array | None
) -> tuple[Array, Array | None]:
    if kind == "lstm":
        reads, forgets, new, writes = np.split(sums + x, 4, axis=-1)
        cell = _sigmoid(forgets) * before + _sigmoid(reads) * np.tanh(new)
        return _sigmoid(writes) * np.tanh(cell), cell
    if kind == "gru":
        (x_reset, x_update, x_new), (reset, update, new) = np.split(x, 3, axis=-1), np.split(sums, 3, axis=-1)
        reset, update = _sigmoid(reset + x_reset), _sigmoid(update + x_update)
        new = np.tanh(x_new + reset * (new if bias is None else new + bias))
        return new + update * (before - new), None
    return (np.tanh(sums + x) if kind == "tanh" else np.maximum(sums + x, 0)), None


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
