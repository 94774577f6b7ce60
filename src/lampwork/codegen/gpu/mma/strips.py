"""Products of few rows, as of decoding: `emit_strips`. They take the time of reading B once, so nothing waits in shared
memory, and no tensor core is needed; sums of float32 are exact ones.

    a warp, for all rows of A and a strip of some columns of B:
        each lane: 16 bytes along k of each row and column at a time, multiplied in float32
        sums of all lanes added; each lane then has one of them, and computes and stores its `value`
"""

from __future__ import annotations

import re

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.mma.frame import ProductWriter
from lampwork.codegen.gpu.mma.instructions import special
from lampwork.codegen.gpu.mma.operands import Operand, operands_of
from lampwork.codegen.gpu.mma.tiles import WARP
from lampwork.codegen.gpu.products import ProductCode
from lampwork.codegen.llvm.builder import Value
from lampwork.codegen.llvm.convert import widen_half
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    both,
    branch,
    ceil_div,
    div,
    evaluate,
    least,
    less,
    mul,
    sub,
    value_of,
)
from lampwork.codegen.llvm.types import itemsize, memory_type, vector_type
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import Gemm
from lampwork.records import record

MOST_ROWS = 8
ON_THE_WAY = 16  # reads of 16 bytes of a lane, at most, if there are several turns along k

_NAME = re.compile(r"mma strip of (\d+) warps (\d+)")


@record
class Strip:
    """columns: of a warp. warps: of a block."""

    columns: int
    warps: int

    @property
    def name(self) -> str:
        return f"mma strip of {self.columns} warps {self.warps}"

    @staticmethod
    def named(name: str) -> Strip | None:
        """The strip of a variant, if it is one."""
        found = _NAME.fullmatch(name)
        return None if found is None else Strip(*map(int, found.groups()))

    def is_possible(self, rows: int | None, operands: tuple[Operand, Operand] | None) -> bool:
        """Whether so many rows are few enough, and both operands lie along k."""
        return (
            rows is not None
            and 0 < rows <= MOST_ROWS
            and 0 < self.columns * rows <= WARP
            and 0 < self.warps <= 32
            and operands is not None
            and all(operand.along_k for operand in operands)
        )


STRIPS = (Strip(4, 4), Strip(2, 4), Strip(8, 4), Strip(1, 8))


def emit_strips(gemm: Gemm, target: GpuTarget, strip: Strip, name: str) -> ProductCode:
    """The kernel of a product of few rows.

    Raises:
        CodegenError: it has too many, or a number that is not known yet, or operands do not lie along k.
    """
    operands, rows = operands_of(gemm), gemm.m.extent.as_int()
    if operands is None or rows is None or not strip.is_possible(rows, operands):
        raise CodegenError(f"no {strip.name} for the product {gemm.out.name!r}")
    width = strip.columns * strip.warps
    blocks = (gemm.n.extent + (width - 1)) // width
    for axis in gemm.batch:
        blocks = blocks * axis.extent
    return _Strips(gemm, operands, target, strip, rows).write(name, blocks)


class _Strips(ProductWriter):
    """One kernel being written."""

    def __init__(
        self, gemm: Gemm, operands: tuple[Operand, Operand], target: GpuTarget, strip: Strip, rows: int
    ) -> None:
        super().__init__(gemm, operands, target, strip.warps * WARP, 0)
        self.strip, self.rows = strip, rows

    def prepare(self) -> None:
        b, strip = self.b, self.strip
        width = strip.columns * strip.warps
        self.columns = evaluate(b, self.gemm.n.extent, self.env)
        block = self.block_of_batch(ceil_div(b, self.columns, width))
        thread = special(b, "tid.x")
        self.lane = b.convert("zext", b.and_(thread, WARP - 1), "i64")
        warp = b.convert("zext", b.lshr(thread, 5), "i64")
        self.n0 = add(b, mul(b, block, width), mul(b, warp, strip.columns))

    def body(self, wide: bool) -> None:
        # The columns past the end are as the last one; none of theirs is stored.
        b, last = self.b, sub(self.b, self.columns, 1)
        lanes = min(self.left.neighbours, self.right.neighbours) if wide else 1
        lines = [self._line(self.left, row) for row in range(self.rows)]
        lines += [
            self._line(self.right, least(b, add(b, self.n0, column), last))
            for column in range(self.strip.columns)
        ]
        depth = evaluate(b, self.gemm.k.extent, self.env)
        step, turns = WARP * lanes, max(1, min(4, ON_THE_WAY // len(lines)))
        whole = mul(b, div(b, depth, turns * step), turns * step)
        begin = b.mul(self.lane, lanes)
        sums = [b.const(0.0, "f32")] * (self.rows * self.strip.columns)
        with b.loop(b.const(0, "i64"), value_of(b, whole), turns * step, sums) as loop:
            places = [b.add(loop.index, b.add(begin, turn * step)) for turn in range(turns)]
            loop.next = self._multiplied(loop.carried, lines, places, lanes)
        with b.loop(b.add(begin, value_of(b, whole)), value_of(b, depth), step, loop.results) as rest:
            rest.next = self._multiplied(rest.carried, lines, [rest.index], lanes)
        self._results([self._across_lanes(each) for each in rest.results])

    def _line(self, operand: Operand, place: Int) -> str:
        """The address where row or column `place` of an operand begins."""
        b = self.b
        across, start = (evaluate(b, each, self.env) for each in (operand.across, operand.start))
        offset = add(b, start, mul(b, place, across))
        return b.element(self.bases[operand.buffer.name], operand.buffer.dtype, value_of(b, offset)).text

    def _multiplied(
        self, sums: list[Value], lines: list[str], places: list[Value], lanes: int
    ) -> list[Value]:
        """The sums with the products of neighbours along k added, from several places on: row after row."""
        b, sums = self.b, list(sums)
        loaded = [[self._neighbours(line, place, lanes) for line in lines] for place in places]
        for numbers in loaded:
            for lane in range(lanes):
                values = [self._element(each, lane) for each in numbers]
                left, right = values[: self.rows], values[self.rows :]
                for row, factor in enumerate(left):
                    for column, other in enumerate(right):
                        at = row * self.strip.columns + column
                        sums[at] = b.fma(factor, other, sums[at])
        return sums

    def _neighbours(self, line: str, place: Value, lanes: int) -> Value:
        b, size = self.b, itemsize(self.dtype)
        address = b.element(line, self.dtype, place).text
        type_ = vector_type(memory_type(self.dtype), lanes)
        return b.emit(f"load {type_}, ptr {address}, align {size * lanes}", self.dtype, lanes)

    def _element(self, numbers: Value, lane: int) -> Value:
        """One of neighbours, as float32."""
        b = self.b
        if numbers.lanes > 1:
            numbers = b.emit(f"extractelement {numbers.type} {numbers.text}, i64 {lane}", numbers.dtype, 1)
        return numbers if numbers.dtype == "f32" else widen_half(b, numbers)

    def _across_lanes(self, total: Value) -> Value:
        """The sum of all lanes, in each of them."""
        b, name = self.b, "llvm.nvvm.shfl.sync.bfly.i32"
        b.module.declare(name, f"declare i32 @{name}(i32, i32, i32, i32) #8")
        distance = WARP // 2
        while distance:
            word = b.bitcast(total, "i32")
            other = b.emit(
                f"call i32 @{name}(i32 -1, i32 {word.text}, i32 {distance}, i32 {WARP - 1})",
                "i32",
                1,
                pure=False,
            )
            total = b.add(total, b.bitcast(other, "f32"))
            distance //= 2
        return total

    def _results(self, sums: list[Value]) -> None:
        """A sum to each lane, which stores what becomes of it."""
        b, columns = self.b, self.strip.columns
        own = sums[0]
        for number, each in enumerate(sums[1:], 1):
            own = b.select(b.cmp("eq", self.lane, number), each, own)
        row, column = b.div(self.lane, columns), b.rem(self.lane, columns)
        n = add(b, self.n0, column)
        is_one = both(b, less(b, self.lane, len(sums)), less(b, n, self.columns))
        branch(b, is_one, lambda: self.store_value(own, row, n))
