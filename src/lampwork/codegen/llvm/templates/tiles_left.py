"""Rows of A copied into scratch, where tiles cannot read them as they lie.

    before:  a(batch, m, k), any strides and any k; or a(batch, digits of m, digits of k) of a convolution, with padding
    after:   scratch[row, k] for the rows of a work item, filled with zeros to whole tiles along k

Rows past the last one repeat it: tiles are of 16 rows, and what they compute of it is thrown away. The rows of scratch
are a cache line further apart than they are long, so that those of a tile do not compete for the same sets of a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lampwork.codegen.llvm.builder import Builder, Value
from lampwork.codegen.llvm.templates.code import Stack
from lampwork.codegen.llvm.templates.conv_plan import ConvPlan
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    both,
    count,
    div,
    evaluate,
    greatest,
    least,
    less,
    mod,
    mul,
    place,
    sub,
    text_of,
    value_of,
)
from lampwork.codegen.llvm.templates.left import LeftScratch, copy_left
from lampwork.codegen.llvm.templates.microkernel import Tile
from lampwork.codegen.llvm.templates.plan import Plan
from lampwork.codegen.llvm.templates.tiles_plan import ROWS, WORDS
from lampwork.codegen.llvm.types import itemsize
from lampwork.records import record

_LINE = 64
"""Bytes of a row of a tile, and of a vector that copies them."""


@record
class CopiedRows:
    """Row r, word k at `pointer` + r * stride + 4 * k bytes."""

    pointer: str
    stride: Int
    words: Int

    def at(self, b: Builder, row: Int, word: Int) -> str:
        return place(b, self.pointer, add(b, mul(b, row, self.stride), mul(b, word, 4)), "i8")

    def copy(
        self, b: Builder, tile: Tile, plan: Plan, matrix: str, first: Int, last: Int, env: Mapping[str, Int]
    ) -> None:
        """Rows first to last of a product's A, in tiles."""
        rows = replace(tile, rows=ROWS)
        with count(b, first, last, ROWS, runs=True) as m0:
            line = LeftScratch(self.at(b, sub(b, m0, first), 0), self._stride_in_words())
            inside = {**env, plan.gemm.m.name: m0}
            copy_left(b, rows, plan, matrix, line, 0, self.words, inside, sub(b, last, 1))

    def _stride_in_words(self) -> int:
        assert isinstance(self.stride, int), "rows that are copied have a known length"
        return self.stride // 4


def make_room(b: Builder, stack: Stack, rows: int, words: Int, most: int) -> CopiedRows:
    """Scratch for `rows` rows of so many words, whole tiles. most: bytes, where the number of words is not known, or
    32 rows of any length."""
    stride = mul(b, add(b, words, WORDS), 4)
    if isinstance(stride, int):
        return CopiedRows(stack.array("left", rows * stride, "i8", 1), stride, words)
    stack.bytes += most
    pointer = b.name("left")
    b.line(f"{pointer} = alloca i8, i64 {text_of(mul(b, stride, rows))}, align {_LINE}")
    return CopiedRows(pointer, stride, words)


def gather_taps(
    b: Builder,
    tile: Tile,
    plan: ConvPlan,
    base: str,
    copied: CopiedRows,
    first: Int,
    last: Int,
    env: Mapping[str, Int],
) -> None:
    """Rows first to last of a convolution's A, in tiles: each tap a run of channels, or of zeros in the padding."""
    gemm, size = plan.gemm, itemsize(tile.source)
    run = mul(b, evaluate(b, gemm.depth[-1].extent, env), size)
    tiles = div(b, add(b, sub(b, last, first), ROWS - 1), ROWS)
    with count(b, 0, mul(b, tiles, ROWS), runs=True) as r:
        m = least(b, add(b, first, r), sub(b, last, 1))
        inside = {**env, **_digits(b, plan, m, env)}
        row = place(b, base, evaluate(b, plan.of_rows(plan.a), inside), tile.source)
        places = [evaluate(b, plan.of_rows(found.index), inside) for found in plan.places]
        line = copied.at(b, r, 0)

        def taps(level: int, number: Int, env: Mapping[str, Int]) -> None:
            if level < len(gemm.depth) - 1:
                axis = gemm.depth[level]
                extent = evaluate(b, axis.extent, env)
                with count(b, 0, extent, runs=True) as digit:
                    taps(level + 1, add(b, mul(b, number, extent), digit), {**env, axis.name: digit})
                return
            env = {**env, gemm.depth[-1].name: 0}
            source = place(b, row, evaluate(b, plan.of_depth(plan.a), env), tile.source)
            there: Int = run
            valid: Value | bool = True
            for found, here in zip(plan.places, places, strict=True):
                at = value_of(b, add(b, here, evaluate(b, plan.of_depth(found.index), env)))
                limit = text_of(evaluate(b, found.last, env))
                # Unsigned: what is below 0 is above the last, too.
                valid = both(b, valid, b.emit(f"icmp ule i64 {at.text}, {limit}", "bool", 1))
            if isinstance(valid, Value):
                there = b.select(valid, value_of(b, run), value_of(b, 0))
            _copy_run(b, source, place(b, line, mul(b, number, run), "i8"), run, there)

        taps(0, 0, env)
        # What k lacks to a whole tile.
        end = place(b, line, mul(b, evaluate(b, gemm.k.extent, env), size), "i8")
        b.line(f"store <{_LINE} x i8> zeroinitializer, ptr {end}, align 1")


def _copy_run(b: Builder, source: str, to: str, run: Int, there: Int) -> None:
    """`there` bytes, zeros up to `run` bytes and to the end of the last line."""
    b.module.declare(
        "llvm.masked.load.v64i8",
        "declare <64 x i8> @llvm.masked.load.v64i8.p0(ptr, i32 immarg, <64 x i1>, <64 x i8>)",
    )
    with count(b, 0, run, _LINE, runs=True) as at:
        left = greatest(b, 0, least(b, _LINE, sub(b, there, at)))
        mask = _first_bytes(b, left)
        line = b.emit(
            f"call <64 x i8> @llvm.masked.load.v64i8.p0(ptr {place(b, source, at, 'i8')}, i32 1, "
            f"<64 x i1> {mask}, <64 x i8> zeroinitializer)",
            "i8",
            _LINE,
            pure=False,
        )
        b.line(f"store <64 x i8> {line.text}, ptr {place(b, to, at, 'i8')}, align 1")


def _first_bytes(b: Builder, number: Int) -> str:
    """A mask of the first `number` of 64 bytes, up to all of them."""
    if number == _LINE:
        return "splat (i1 true)"
    ones = b.emit(f"lshr i64 -1, {text_of(sub(b, _LINE, number))}", "i64", 1)
    # A shift by all 64 bits has no value.
    bits = b.select(less_than(b, number), b.const(0, "i64"), ones)
    return b.emit(f"bitcast i64 {bits.text} to <64 x i1>", "bool", _LINE).text


def less_than(b: Builder, number: Int) -> Value:
    """number < 1."""
    found = less(b, number, 1)
    return b.const(found, "bool") if isinstance(found, bool) else found


def _digits(b: Builder, plan: ConvPlan, m: Int, env: Mapping[str, Int]) -> dict[str, Int]:
    """The digits of row m."""
    found: dict[str, Int] = {}
    for axis in reversed(plan.gemm.rows[1:]):
        size = evaluate(b, axis.extent, env)
        found[axis.name] = mod(b, m, size)
        m = div(b, m, size)
    return found | {plan.gemm.rows[0].name: m}
