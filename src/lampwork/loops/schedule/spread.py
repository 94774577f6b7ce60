"""Rows in pieces: of a machine with more threads than there are rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lampwork.loops.ir.expr import move
from lampwork.loops.ir.grid import lanes_of
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Loop, Stmt
from lampwork.loops.schedule.grid import BLOCK, TURNS


def spread(body: Sequence[Stmt]) -> list[Stmt]:
    """Rows whose elements have nothing to do with each other, cut into pieces.

    before: parallel i < 64: vector j < 262144: y[i, j]
    after:  parallel p < 64 * 64: vector j < 4096: y[p // 64, p % 64 * 4096 + j]
    """
    outer = body[0] if len(body) == 1 else None
    if not isinstance(outer, Loop) or outer.kind != "parallel" or len(outer.body) != 1:
        return list(body)
    loop = outer.body[0]
    if not isinstance(loop, Loop) or loop.kind != "vector" or loop.limit is not None:
        return list(body)
    size, step = loop.axis.extent.as_int(), lanes_of(loop)
    most = TURNS * BLOCK * step
    if size is None or size <= most:
        return list(body)
    lengths = [n for n in range(most, BLOCK * step - 1, -step) if size % n == 0]
    if not lengths:
        return list(body)
    best = next((n for n in lengths if n % (BLOCK * step) == 0), lengths[0])
    pieces = size // best
    whole = Axis(f"{outer.axis.name}s", outer.axis.extent * pieces)
    place = Index.var(whole.name)
    inner = Axis(f"{loop.axis.name}s", as_index(best))
    mapping = {
        outer.axis.name: place // pieces,
        loop.axis.name: place % pieces * best + Index.var(inner.name),
    }
    extents = {whole.name: whole.extent, inner.name: inner.extent}
    moved = tuple(move(stmt, mapping, extents) for stmt in loop.body)
    return [replace(outer, axis=whole, body=(Loop(inner, "vector", moved),))]
