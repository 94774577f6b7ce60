"""Rows of A that cannot be multiplied as they lie, copied into a GEMM's scratch.

    before:  a(batch, m, k) of a half type, any strides
    after:   scratch[row, k // steps] for the rows of a tile and a block of k: float32, or words of `steps` neighbours

That is done for half types that are multiplied in float32, and for dot product instructions where a row is not
contiguous along k or has an odd length: the last word is filled with zeros then. It costs a few percent of the product.
"""

from __future__ import annotations

from collections.abc import Mapping

from lampwork.codegen.llvm.builder import Builder
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    count,
    div,
    evaluate,
    least,
    less,
    mod,
    mul,
    place,
    sub,
)
from lampwork.codegen.llvm.templates.microkernel import Tile, load_source, load_vector, store_vector
from lampwork.codegen.llvm.templates.plan import Plan, split_offset
from lampwork.loops.ir.index import ONE
from lampwork.records import record


@record
class LeftScratch:
    """Where the copies lie: row r of the tile at `pointer` + r * stride elements of the tile's dtype."""

    pointer: str
    stride: int


def copy_left(
    b: Builder,
    tile: Tile,
    plan: Plan,
    matrix: str,
    scratch: LeftScratch,
    k0: Int,
    depth: Int,
    env: Mapping[str, Int],
    last_row: Int | None = None,
) -> None:
    """scratch[r, j] = word k0 + j of A's row env[m] + r, for the tile's rows and j < depth.

    matrix: the address of A's buffer. last_row: rows past it repeat it.
    """
    gemm = plan.gemm
    m, k = gemm.m.name, gemm.k.name
    size = evaluate(b, gemm.k.extent, env)
    whole = least(b, depth, div(b, sub(b, size, mul(b, k0, tile.steps)), tile.steps))
    main: Int = sub(b, whole, mod(b, whole, tile.lanes)) if runs_along_k(plan, tile) else 0
    with count(b, 0, tile.rows) as r:
        row = add(b, env[m], r)
        inside = {**env, m: row if last_row is None else least(b, row, last_row)}
        line = place(b, scratch.pointer, mul(b, r, scratch.stride), tile.dtype)
        with count(b, 0, main, tile.lanes) as step:
            at = evaluate(b, plan.a, {**inside, k: mul(b, add(b, k0, step), tile.steps)})
            value = load_source(b, tile, tile.lanes, place(b, matrix, at, tile.source))
            store_vector(b, value, place(b, line, step, tile.dtype))
        with count(b, main, depth) as step:
            for part in range(tile.steps):
                number = add(b, mul(b, add(b, k0, step), tile.steps), part)
                here = least(b, number, sub(b, size, 1))
                at = evaluate(b, plan.a, {**inside, k: here})
                value = load_vector(b, tile.source, 1, place(b, matrix, at, tile.source))
                valid = less(b, number, size)
                if valid is False:
                    value = b.const(0, tile.source)
                elif valid is not True:
                    value = b.select(valid, value, b.const(0, tile.source))
                stored = tile.number if tile.steps > 1 else tile.dtype
                to = place(b, line, add(b, mul(b, step, tile.steps), part), stored)
                store_vector(b, convert(b, value, stored), to)


def widen_run(b: Builder, tile: Tile, start: str, target: str, count_: Int) -> None:
    """target[j] = the word j of numbers at `start`, as it is multiplied, for j < count_."""
    main = sub(b, count_, mod(b, count_, tile.lanes))
    for lanes, first, last in ((tile.lanes, 0, main), (1, main, count_)):
        with count(b, first, last, lanes) as at:
            value = load_source(b, tile, lanes, place(b, start, mul(b, at, tile.steps), tile.source))
            store_vector(b, value, place(b, target, at, tile.dtype))


def runs_along_k(plan: Plan, tile: Tile) -> bool:
    """Whether a vector of words from a place that is a multiple of its lanes is contiguous in a row of A."""
    k = plan.gemm.k.name
    if plan.a.coefficient(k) == ONE:
        return True
    if not plan.split or plan.split % (tile.lanes * tile.steps):
        return False
    return split_offset(plan.gemm, plan.a, plan.split).coefficient(f"{k}.inner") == ONE
