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


def run_recurrence(kind: CellKind, given: Operands) -> tuple[Array, Array | None]:
    """(the states (d, t, b, k), or (d, s, k), the last cells (d, b, u))."""
    directions, size = given.x.shape[0], given.h.shape[-1]
    x = given.x.reshape(directions, -1, given.x.shape[-1])
    out = np.zeros((*x.shape[:2], size), x.dtype)
    last = None if given.c is None else given.c.copy()
    for d in range(directions):
        states = given.h[d].copy()
        bias = None if given.bias is None else given.bias[d]
        for at in given.rows()[:: -1 if d else 1]:
            there = at.stop - at.start
            sums = np.matmul(states[:there], given.w[d])
            before = (states if last is None else last[d])[:there]
            state, cell = _cell(kind, x[d, at], sums, before, bias)
            if last is not None:
                last[d, :there] = cell
            if given.project is not None:
                state = np.matmul(state, given.project[d])
            states[:there] = out[d, at] = state
    return out.reshape(*given.x.shape[:-1], size), last


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
