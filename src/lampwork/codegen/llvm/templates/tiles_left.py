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
    branch,
    count,
    div,
    evaluate,
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
from lampwork.codegen.llvm.templates.microkernel import Tile, load_vector, store_vector
from lampwork.codegen.llvm.templates.plan import Plan
from lampwork.codegen.llvm.templates.tiles_plan import ROWS, WORDS
from lampwork.codegen.llvm.types import itemsize
from lampwork.loops.ir.nodes import DType
from lampwork.loops.ir.windows import Place
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
    tiles = div(b, add(b, sub(b, last, first), ROWS - 1), ROWS)
    size = itemsize(tile.source)
    with count(b, 0, mul(b, tiles, ROWS), runs=True) as r:
        m = least(b, add(b, first, r), sub(b, last, 1))
        inside = {**env, **_digits(b, plan, m, env)}
        row = place(b, base, evaluate(b, plan.of_rows(plan.a), inside), tile.source)
        starts = [evaluate(b, plan.of_rows(found.index), inside) for found in plan.places]
        line = copied.at(b, r, 0)
        taps = _Taps(b, plan, tile.source, row, line, list(zip(plan.places, starts, strict=True)))
        taps.copy(0, 0, {**env, plan.gemm.depth[-1].name: 0}, taps.places, True)
        # What k lacks to a whole tile.
        end = place(b, line, mul(b, evaluate(b, plan.gemm.k.extent, env), size), "i8")
        b.line(f"store <{_LINE} x i8> zeroinitializer, ptr {end}, align 1")


@record
class _Taps:
    """The taps of one row, from `row` on, to `line`. places: each with where the row is."""

    b: Builder
    plan: ConvPlan
    dtype: DType
    row: str
    line: str
    places: list[tuple[Place, Int]]

    def copy(
        self,
        level: int,
        number: Int,
        env: Mapping[str, Int],
        places: list[tuple[Place, Int]],
        valid: Value | bool,
    ) -> None:
        """All taps with the digits of k in `env`, which has those before `level`; `number` is what they count.
        `places`: what is not yet known to be `valid`."""
        b, depth = self.b, self.plan.gemm.depth
        inner = {axis.name for axis in depth[level:-1]}
        for found, start in places:
            if not found.index.variables() & inner:
                valid = both(b, valid, self._is_inside(found, start, env))
        places = [each for each in places if each[0].index.variables() & inner]
        run = mul(b, evaluate(b, depth[-1].extent, env), itemsize(self.dtype))
        if level == len(depth) - 1:
            self._copy_run(number, env, run, run, valid)
            return
        axis = depth[level]
        extent = evaluate(b, axis.extent, env)

        def one_by_one() -> None:
            with count(b, 0, extent, runs=True) as digit:
                at = add(b, mul(b, number, extent), digit)
                self.copy(level + 1, at, {**env, axis.name: digit}, places, valid)

        if level < len(depth) - 2:
            one_by_one()
            return
        # Taps that lie side by side in A as they do in k, all of them inside: one run.
        factor = self.plan.a.coefficient(axis.name)
        assert factor is not None, "the taps of a convolution are equally far apart"
        apart = mul(b, evaluate(b, factor, env), itemsize(self.dtype))
        joined = apart == run if isinstance(apart, int) else b.cmp("eq", apart, value_of(b, run))
        for digit in (0, sub(b, extent, 1)):
            for found, start in places:
                joined = both(b, joined, self._is_inside(found, start, {**env, axis.name: digit}))
        whole = mul(b, run, extent)
        begin = mul(b, number, extent)
        branch(
            b,
            both(b, valid, joined),
            lambda: self._copy_run(begin, {**env, axis.name: 0}, run, whole, True),
            one_by_one,
        )

    def _is_inside(self, found: Place, start: Int, env: Mapping[str, Int]) -> Value:
        b = self.b
        at = value_of(b, add(b, start, evaluate(b, self.plan.of_depth(found.index), env)))
        # Unsigned: what is below 0 is above the last, too.
        return b.emit(f"icmp ule i64 {at.text}, {text_of(evaluate(b, found.last, env))}", "bool", 1)

    def _copy_run(
        self, number: Int, env: Mapping[str, Int], run: Int, length: Int, valid: Value | bool
    ) -> None:
        """`length` bytes from tap `number` on, each tap of `run` bytes; zeros, if it is not valid."""
        b = self.b
        source = place(b, self.row, evaluate(b, self.plan.of_depth(self.plan.a), env), self.dtype)
        to = place(b, self.line, mul(b, number, run), "i8")
        branch(b, valid, lambda: _copy_lines(b, source, to, length), lambda: _clear_lines(b, to, length))


def _copy_lines(b: Builder, source: str, to: str, length: Int) -> None:
    """So many bytes, and zeros up to the end of the last line."""
    left = mod(b, length, _LINE)
    whole = sub(b, length, left)
    with count(b, 0, whole, _LINE) as at:
        line = load_vector(b, "i8", _LINE, place(b, source, at, "i8"))
        store_vector(b, line, place(b, to, at, "i8"))
    if left == 0:
        return

    def rest() -> None:
        mask = b.first_lanes(value_of(b, left), _LINE).text
        b.module.declare(
            "llvm.masked.load.v64i8",
            "declare <64 x i8> @llvm.masked.load.v64i8.p0(ptr, i32 immarg, <64 x i1>, <64 x i8>)",
        )
        line = b.emit(
            f"call <64 x i8> @llvm.masked.load.v64i8.p0(ptr {place(b, source, whole, 'i8')}, i32 1, "
            f"<64 x i1> {mask}, <64 x i8> zeroinitializer)",
            "i8",
            _LINE,
            pure=False,
        )
        store_vector(b, line, place(b, to, whole, "i8"))

    branch(b, less(b, 0, left), rest)


def _clear_lines(b: Builder, to: str, length: Int) -> None:
    with count(b, 0, length, _LINE, runs=True) as at:
        store_vector(b, Value("zeroinitializer", "i8", _LINE), place(b, to, at, "i8"))


def _digits(b: Builder, plan: ConvPlan, m: Int, env: Mapping[str, Int]) -> dict[str, Int]:
    """The digits of row m."""
    found: dict[str, Int] = {}
    for axis in reversed(plan.gemm.rows[1:]):
        size = evaluate(b, axis.extent, env)
        found[axis.name] = mod(b, m, size)
        m = div(b, m, size)
    return found | {plan.gemm.rows[0].name: m}
