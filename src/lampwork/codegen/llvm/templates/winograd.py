"""Convolutions of 3 x 3 taps by minimal filtering (loops/ir/winograd.py): a kernel of the ABI of `Kernel`.

    for item in [begin, end):                   some tiles of outputs x outputs pixels, some panels of output channels
        for each tile, lanes of channels:       V[p, tile, c] = B d Bt, d being the pixels under the tile
        for each panel of output channels:
            for each point p:                   M[p, tile, n] = sum over c of V[p, tile, c] * U[p, c, n]
            for each tile, lanes of columns:    its pixels = A M At, and the epilogue

V and M are on the stack. Pixels outside of the input are read from zeros; outputs past the ends are not stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.templates.code import GemmCode, Stack, function, load_params
from lampwork.codegen.llvm.templates.epilogue import Epilogue, needs_checks, valid_columns
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    both,
    count,
    div,
    evaluate,
    least,
    mod,
    mul,
    place,
    sub,
    text_of,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import (
    Operands,
    RowAddress,
    Tile,
    accumulate,
    load_vector,
    store_tile,
    store_vector,
    zeros,
)
from lampwork.codegen.llvm.templates.winograd_plan import Line, WinogradConfig, WinogradPlan
from lampwork.codegen.target import Target
from lampwork.loops.ir.expr import definition_exprs, indices
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import DType
from lampwork.loops.ir.winograd import TRANSFORMS, Matrix
from lampwork.records import record

_DTYPE: DType = "f32"


@record
class _TilePlace:
    """Where a tile's first output is: its image, row and column."""

    image: Int
    row: Int
    column: Int


@record
class _Dimension:
    """A `Line` as this function knows it. tiles: how many cover it. spare: how far past the first input of the last
    tile there are inputs; None: that depends on its size."""

    padding: int
    tiles: Int
    outputs: Int
    last: Int
    stride: Int
    spare: int | None


def emit_winograd(plan: WinogradPlan, name: str, target: Target, config: WinogradConfig) -> GemmCode:
    """The kernel of a convolution whose panels are of transformed weights."""
    return _Emission(plan, name, target, config).run()


class _Emission:
    """One run of emit_winograd."""

    def __init__(self, plan: WinogradPlan, name: str, target: Target, config: WinogradConfig) -> None:
        self.plan, self.name, self.config, self.gemm = plan, name, config, plan.gemm
        self.by = TRANSFORMS[plan.gemm.outputs]
        self.points = self.by.points**2
        self.b = Builder(Module(), target)
        self.error = self.b.name("error") if needs_checks(plan.gemm) else None
        self.emitter = Emitter(self.b, written=frozenset((plan.gemm.out.name,)), error_flag=self.error)
        self.tile = Tile.of(config.rows, config.vectors, target, _DTYPE)
        self.panels = -(-(plan.gemm.n.extent.as_int() or 0) // self.tile.width)
        self.stack = Stack(self.b)

    def run(self) -> GemmCode:
        b, gemm, plan, config = self.b, self.gemm, self.plan, self.config
        used = [index for expr in definition_exprs(gemm) for index in indices(expr)]
        self.bases, sizes, self.env = load_params(b, plan.params, [*gemm.index, *plan.indices, *used])
        self.image, self.start = self._size(plan.image), self._size(plan.start)
        rows, columns = plan.lines
        self.lines = (self._dimension(rows), self._dimension(columns))
        self.total = self._size(plan.tiles(self.by.outputs))
        self.epilogue = Epilogue(gemm, self.emitter, self.bases, self.name)
        if self.error is not None:
            b.line(f"{self.error} = alloca i64")
            b.line(f"store i64 0, ptr {self.error}")
        self.inputs = self._stack("inputs", self.points * config.tiles * plan.channels)
        self.products = self._stack("products", self.points * config.tiles * self.tile.width)
        self.outputs = self._stack("outputs", self.by.outputs**2 * self.tile.width)
        self.pixels = self._stack("pixels", 2 * self.points)
        self.zeros = self._stack("zeros", plan.channels)
        zero = Value("zeroinitializer", _DTYPE, self.tile.lanes)
        with count(b, 0, plan.channels, self.tile.lanes) as at:
            store_vector(b, zero, place(b, self.zeros, at, _DTYPE))
        blocks = (plan.tiles(self.by.outputs) + (config.tiles - 1)) // config.tiles
        share = -(-self.panels // config.splits)
        with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
            block, part = div(b, items.index, config.splits), mod(b, items.index, config.splits)
            first = mul(b, part, share)
            self._item(mul(b, block, config.tiles), first, least(b, add(b, first, share), self.panels))
        work = 2 * self.points * config.tiles * plan.channels * share * self.tile.width
        text = function(b, self.name, self.error)
        return GemmCode(
            *(self.name, text, plan.params, sizes, blocks * config.splits, as_index(work)),
            *(b.target.thread_work, self.stack.bytes),
        )

    def _size(self, index: Index) -> Int:
        return evaluate(self.b, index, self.env)

    def _dimension(self, line: Line) -> _Dimension:
        tiles = line.tiles(self.by.outputs)
        furthest = (tiles - 1) * self.by.outputs - line.padding
        count, outputs = self._size(tiles), self._size(line.outputs)
        last, stride = self._size(line.last), self._size(line.stride)
        return _Dimension(line.padding, count, outputs, last, stride, (line.last - furthest).as_int())

    def _stack(self, hint: str, elements: int) -> str:
        return self.stack.array(hint, elements, self.tile.element, self.tile.size)

    def _item(self, first: Int, first_panel: Int, last_panel: Int) -> None:
        b, config = self.b, self.config
        with count(b, 0, config.tiles) as number:
            # Past the last tile it is taken once more.
            last = sub(b, self.total, 1)
            self._transform_inputs(self._place_of(least(b, add(b, first, number), last)), number)
        with count(b, first_panel, last_panel) as panel:
            with count(b, 0, self.points) as point:
                self._multiply(point, panel)
            n0 = mul(b, panel, self.tile.width)
            env = {**self.env, self.gemm.n.name: n0}
            columns = valid_columns(self.emitter, self.gemm, self.tile, n0, env)
            with count(b, 0, least(b, config.tiles, sub(b, self.total, first))) as number:
                self._transform_outputs(self._place_of(add(b, first, number)), number, n0, columns)

    def _place_of(self, tile: Int) -> _TilePlace:
        b, size, (rows, columns) = self.b, self.by.outputs, self.lines
        line = div(b, tile, columns.tiles)
        return _TilePlace(
            div(b, line, rows.tiles),
            mul(b, mod(b, line, rows.tiles), size),
            mul(b, mod(b, tile, columns.tiles), size),
        )

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _transform_inputs(self, at: _TilePlace, number: Int) -> None:
        b, plan, side, lanes = self.b, self.plan, self.by.points, self.tile.lanes
        rows, columns = self.lines
        inside = [
            [self._is_inside(line, first, d) for d in range(side)]
            for line, first in ((rows, at.row), (columns, at.column))
        ]
        corner = add(b, mul(b, at.image, self.image), self.start)
        corner = add(b, corner, add(b, mul(b, at.row, rows.stride), mul(b, at.column, columns.stride)))
        base = self.bases[self.gemm.a.buffer.name]
        for i in range(side):
            for j in range(side):
                shift = add(b, mul(b, i, rows.stride), mul(b, j, columns.stride))
                pixel = place(b, base, add(b, corner, shift), _DTYPE)
                exists = both(b, inside[0][i], inside[1][j])
                if isinstance(exists, Value):
                    pixel = b.emit(
                        f"select i1 {exists.text}, ptr {pixel}, ptr {self.zeros}", "i64", 1, pure=False
                    ).text
                b.line(f"store ptr {pixel}, ptr {self._pixel(i, j)}, align 8")
        with count(b, 0, plan.channels, lanes) as channel:
            square = [[self._input(i, j, channel) for j in range(side)] for i in range(side)]
            square = _both_ways(b, self.by.inputs, square)
            target = place(b, self.inputs, add(b, mul(b, number, plan.channels), channel), _DTYPE)
            for i in range(side):
                for j in range(side):
                    step = (i * side + j) * self.config.tiles * plan.channels
                    store_vector(b, square[i][j], place(b, target, step, _DTYPE))

    def _is_inside(self, line: _Dimension, first: Int, d: int) -> Value | bool:
        """Whether the input d past the first one of the tile at `first` exists."""
        b, at = self.b, add(self.b, first, d - line.padding)
        if line.spare is not None and line.padding <= d <= line.spare:
            return True
        # Unsigned: what is below 0 is above the last, too.
        return b.emit(f"icmp ule i64 {text_of(value_of(b, at))}, {text_of(line.last)}", "bool", 1)

    def _pixel(self, i: int, j: int) -> str:
        return place(self.b, self.pixels, 2 * (i * self.by.points + j), _DTYPE)

    def _input(self, i: int, j: int, channel: Int) -> Value:
        b = self.b
        pointer = b.emit(f"load ptr, ptr {self._pixel(i, j)}, align 8", "i64", 1, pure=False).text
        return load_vector(b, _DTYPE, self.tile.lanes, place(b, pointer, channel, _DTYPE))

    # --- products -----------------------------------------------------------------------------------------------------

    def _multiply(self, point: Int, panel: Int) -> None:
        b, tile, channels, tiles = self.b, self.tile, self.plan.channels, self.config.tiles
        weights = mul(b, add(b, mul(b, point, self.panels), panel), channels * tile.width)
        b_start = place(b, self.bases[self.gemm.b.buffer.name], weights, _DTYPE)
        with count(b, 0, tiles, tile.rows) as row:
            at = add(b, mul(b, point, tiles), row)
            base = place(b, self.inputs, mul(b, at, channels), _DTYPE)
            rows = [RowAddress(base, r * channels) for r in range(tile.rows)]
            operands = Operands(rows, _DTYPE, 1, b_start, tile.width)
            unroll = 1 if tile.rows * tile.vectors >= 12 else 2
            sums = accumulate(b, tile, operands, channels, zeros(tile), unroll)
            store_tile(b, tile, sums, place(b, self.products, mul(b, at, tile.width), _DTYPE))

    # --- outputs ------------------------------------------------------------------------------------------------------

    def _transform_outputs(self, at: _TilePlace, number: Int, n0: Int, columns: Int) -> None:
        b, tile, side, size = self.b, self.tile, self.by.points, self.by.outputs
        source = place(b, self.products, mul(b, number, tile.width), _DTYPE)
        with count(b, 0, tile.width, tile.lanes) as column:
            here = place(b, source, column, _DTYPE)
            square = [
                [
                    load_vector(
                        b,
                        _DTYPE,
                        tile.lanes,
                        place(b, here, (i * side + j) * self.config.tiles * tile.width, _DTYPE),
                    )
                    for j in range(side)
                ]
                for i in range(side)
            ]
            square = _both_ways(b, self.by.results, square)
            into = place(b, self.outputs, column, _DTYPE)
            for i in range(size):
                for j in range(size):
                    store_vector(b, square[i][j], place(b, into, (i * size + j) * tile.width, _DTYPE))
        rows, across = (line.outputs for line in self.lines)
        first = mul(b, add(b, mul(b, at.image, rows), at.row), across)
        first = add(b, first, at.column)
        row_of_pixels = Tile(size, tile.vectors, tile.lanes, tile.dtype, tile.source)
        with count(b, 0, least(b, size, sub(b, rows, at.row))) as i:
            m = add(b, first, mul(b, i, across))
            env = {**self.env, self.gemm.m.name: m, self.gemm.n.name: n0}
            pixels = place(b, self.outputs, mul(b, i, size * tile.width), _DTYPE)
            valid = least(b, size, sub(b, across, at.column))
            self.epilogue.from_scratch(row_of_pixels, pixels, env, 0, valid, columns)


def _both_ways(b: Builder, matrix: Matrix, square: list[list[Value]]) -> list[list[Value]]:
    """matrix * square * transposed(matrix)."""
    columns = [[_combined(b, row, column) for row in matrix] for column in zip(*square, strict=True)]
    rows = list(zip(*columns, strict=True))
    return [[_combined(b, row, values) for row in matrix] for values in rows]


def _combined(b: Builder, factors: Sequence[Fraction], values: Sequence[Value]) -> Value:
    """The sum of the values times their factors."""
    total: Value | None = None
    # Those of factor 1 first: what follows is fused into a multiplication.
    for factor, value in sorted(zip(factors, values, strict=True), key=lambda each: abs(each[0]) != 1):
        if factor == 0:
            continue
        if total is None:
            total = value if factor == 1 else b.neg(value) if factor == -1 else b.mul(value, float(factor))
        elif abs(factor) == 1:
            total = b.add(total, value) if factor == 1 else b.sub(total, value)
        else:
            total = b.fma(value, b.widen(b.const(float(factor), value.dtype), value.lanes), total)
    assert total is not None, "a row of a transform has a factor"
    return total
