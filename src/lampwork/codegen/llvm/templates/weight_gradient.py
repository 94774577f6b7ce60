"""Gradients of a convolution's weight: a `Gemm` whose channels are in its rows becomes a kernel of the ABI of `Kernel`.

    for item in [begin, end):                      one group, one outer tap, a panel of channels, a block of g's columns
        for image, outer pixel, lines, columns:    a block of pixels
            copy what they read of x, zeros in the padding, into scratch: a line of it is a run of panels
            for tile of g's columns, for each tap of the two inner dimensions:
                accumulate over the block's pixels microkernel.py: g by broadcasts, x from scratch
                add to the sums of the item
        epilogue

A block of pixels is as long as a chain of sums may be, and its panels stay in the first two levels of the cache while
all taps and columns of g pass over them: x is copied once for hundreds of multiplications, g is read as it lies.
"""

from __future__ import annotations

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.templates.code import GemmCode, Stack, decode_batch, function, load_params
from lampwork.codegen.llvm.templates.epilogue import Epilogue, needs_checks
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    both,
    branch,
    ceil_div,
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
from lampwork.codegen.llvm.templates.microkernel import (
    Accumulators,
    Operands,
    RowAddress,
    Tile,
    accumulate,
    load_tile,
    load_vector,
    store_tile,
    store_vector,
    zeros,
)
from lampwork.codegen.llvm.templates.transpose import store_first, transpose
from lampwork.codegen.llvm.templates.weight_gradient_plan import GradientConfig, GradientPlan
from lampwork.codegen.target import Target
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.expr import indices
from lampwork.loops.ir.nodes import Axis
from lampwork.loops.ir.weight_gradient import Steps


def emit_weight_gradient(plan: GradientPlan, name: str, target: Target, config: GradientConfig) -> GemmCode:
    """The kernel of a weight's gradient."""
    return Emission(plan, name, target, config).run()


class Emission:
    """One run of emit_weight_gradient."""

    def __init__(self, plan: GradientPlan, name: str, target: Target, config: GradientConfig) -> None:
        self.plan, self.name, self.config, self.gemm, self.found = plan, name, config, plan.gemm, plan.found
        self.b = Builder(Module(), target)
        self.error = self.b.name("error") if needs_checks(plan.stored) else None
        self.emitter = Emitter(self.b, written=frozenset((plan.gemm.out.name,)), error_flag=self.error)
        self.tile = Tile.of(config.rows, config.vectors, target, plan.gemm.a.buffer.dtype)
        self.stack = Stack(self.b)
        self.lines, self.columns = plan.found.lines, plan.found.columns
        self.outer_taps = plan.taps[:-2]
        self.panels = (plan.channels.extent + (self.tile.width - 1)) // self.tile.width
        self.tap_count = _size(self.lines.tap) * _size(self.columns.tap)
        # Of a line of positions in scratch, in elements.
        self.line = plan.found.columns.positions(config.columns) * self.tile.width

    def run(self) -> GemmCode:
        gemm, b, plan = self.gemm, self.b, self.plan
        axes = (*gemm.batch, *gemm.rows, *gemm.depth, gemm.n, gemm.k)
        used = list(indices(plan.stored.value))
        used += [elements_of(buffer) for buffer in plan.params]
        self.bases, sizes, env = load_params(
            b,
            plan.params,
            [*(axis.extent for axis in axes), *plan.stored.index, self.found.x, self.found.g, *used],
        )
        self.epilogue = Epilogue(plan.stored, self.emitter, self.bases, self.name)
        self._allocate()
        blocks = (gemm.n.extent + (self.config.outputs - 1)) // self.config.outputs
        panel_count, block_count = evaluate(b, self.panels, env), evaluate(b, blocks, env)
        with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
            panel = mod(b, items.index, panel_count)
            block = mod(b, div(b, items.index, panel_count), block_count)
            outer = (*gemm.batch, *self.outer_taps)
            batch = decode_batch(b, outer, items.index, mul(b, panel_count, block_count), env)
            self._item(panel, mul(b, block, self.config.outputs), env | batch)
        extent = self.panels * blocks
        for axis in (*gemm.batch, *self.outer_taps):
            extent = extent * axis.extent
        work = gemm.k.extent * (2 * self.tile.width * self.config.outputs * self.tap_count)
        text = function(b, self.name, self.error)
        return GemmCode(
            self.name, text, plan.params, sizes, extent, work, b.target.thread_work, self.stack.bytes
        )

    def _allocate(self) -> None:
        """Room for the sums of an item, and for the panels of a block of pixels."""
        b, tile, config = self.b, self.tile, self.config
        if self.error is not None:
            b.line(f"{self.error} = alloca i64")
            b.line(f"store i64 0, ptr {self.error}")
        self.one_tile = tile.rows * tile.width
        self.sum_count = self.one_tile
        if not self.gemm.is_depthwise:
            self.sum_count *= config.outputs // tile.rows * self.tap_count
        self.sums = self.stack.array("sums", self.sum_count, tile.element, tile.size)
        held = self.lines.positions(config.lines) * self.line
        self.held = self.stack.array("held", held, tile.element, tile.size)

    # --- one work item ------------------------------------------------------------------------------------------------

    def _item(self, panel: Int, first: Int, env: dict[str, Int]) -> None:
        b, tile = self.b, self.tile
        zero = Value("zeroinitializer", tile.dtype, tile.lanes)
        with count(b, 0, self.sum_count, tile.lanes) as at:
            store_vector(b, zero, place(b, self.sums, at, tile.dtype))
        start = mul(b, panel, tile.width)
        env = env | {self.plan.channels.name: start}
        width: Int = tile.width
        if _size(self.plan.channels) % tile.width:
            width = least(b, tile.width, sub(b, _size(self.plan.channels), start))
        outputs = _size(self.gemm.n)
        last = least(b, add(b, first, self.config.outputs), outputs)
        self._planes(0, env, first, last, width)
        self._store(env, first, last, width)

    def _planes(self, level: int, env: dict[str, Int], first: Int, last: Int, width: Int) -> None:
        """All blocks of pixels, from the digit `level` of k on."""
        b = self.b
        outer = self.gemm.depth[:-2]
        if level < len(outer):
            with count(b, 0, evaluate(b, outer[level].extent, env)) as at:
                self._planes(level + 1, env | {outer[level].name: at}, first, last, width)
            return
        exists: Value | bool = True
        for found in self.found.planes:
            at = value_of(b, evaluate(b, found.index, env))
            here = b.emit(f"icmp ule i64 {at.text}, {text_of(evaluate(b, found.last, env))}", "bool", 1)
            exists = both(b, exists, here)
        branch(b, exists, lambda: self._blocks(env, first, last, width))

    def _blocks(self, env: dict[str, Int], first: Int, last: Int, width: Int) -> None:
        b, config, y, x = self.b, self.config, self.lines.pixel, self.columns.pixel
        with count(b, 0, _size(y), config.lines) as line:
            lines = config.lines
            if _size(y) % config.lines:
                lines = least(b, config.lines, sub(b, _size(y), line))
            with count(b, 0, _size(x), config.columns) as column:
                columns = config.columns
                if _size(x) % config.columns:
                    columns = least(b, config.columns, sub(b, _size(x), column))
                inside = env | {y.name: line, x.name: column}
                self._hold(inside, lines, columns, width)
                self._multiply(inside, lines, columns, first, last, width)

    # --- x ------------------------------------------------------------------------------------------------------------

    def _hold(self, env: dict[str, Int], lines: Int, columns: Int, width: Int) -> None:
        """Copy the panel of all positions that a block of pixels reads."""
        b, tile = self.b, self.tile
        start = {axis.name: 0 for axis in (self.lines.tap, self.columns.tap)}
        corner = evaluate(b, self.found.x, env | start)
        base = self.bases[self.gemm.a.buffer.name]
        long, wide = self._positions(self.lines, lines), self._positions(self.columns, columns)
        low, high = self._inside(self.columns, env, wide)
        top, end = self._inside(self.lines, env, long)
        with count(b, 0, long) as line:
            to = place(b, self.held, mul(b, line, self.line), tile.dtype)
            at = place(b, base, add(b, corner, mul(b, line, self.lines.pixels.step)), tile.source)
            here = both(b, less(b, sub(b, top, 1), line), less(b, line, end))
            after = high
            before: Int = low
            if not isinstance(here, bool):
                before, after = b.select(here, value_of(b, low), value_of(b, wide)), value_of(b, wide)
                after = b.select(here, value_of(b, high), value_of(b, wide))
            self._clear(to, 0, before)
            self._copy(at, to, before, after, width)
            self._clear(to, after, wide)

    def _positions(self, steps: Steps, pixels: Int) -> Int:
        extra = (_size(steps.tap) - 1) * steps.pixels.dilation + 1
        return add(self.b, mul(self.b, sub(self.b, pixels, 1), steps.pixels.stride), extra)

    def _inside(self, steps: Steps, env: dict[str, Int], positions: Int) -> tuple[Int, Int]:
        """From which position to which one they lie inside of x."""
        b = self.b
        if steps.place is None:
            return 0, positions
        first, last = evaluate(b, steps.place.index, env), evaluate(b, steps.place.last, env)
        low = ceil_div(b, greatest(b, 0, sub(b, 0, first)), steps.apart)
        high = div(b, greatest(b, 0, add(b, sub(b, last, first), steps.apart)), steps.apart)
        high = least(b, high, positions)
        return least(b, low, high), high

    def _clear(self, to: str, start: Int, stop: Int) -> None:
        b, tile = self.b, self.tile
        zero = Value("zeroinitializer", tile.dtype, tile.lanes)
        with count(b, start, stop) as at:
            row = place(b, to, mul(b, at, tile.width), tile.dtype)
            for v in range(tile.vectors):
                store_vector(b, zero, place(b, row, v * tile.lanes, tile.dtype))

    def _copy(self, at: str, to: str, start: Int, stop: Int, width: Int) -> None:
        b, tile = self.b, self.tile
        with count(b, start, stop) as position:
            source = place(b, at, mul(b, position, self.columns.pixels.step), tile.source)
            row = place(b, to, mul(b, position, tile.width), tile.dtype)

            def whole(source: str = source, row: str = row) -> None:
                for v in range(tile.vectors):
                    value = load_vector(
                        b, tile.dtype, tile.lanes, place(b, source, v * tile.lanes, tile.dtype)
                    )
                    store_vector(b, value, place(b, row, v * tile.lanes, tile.dtype))

            def part(source: str = source, row: str = row) -> None:
                zero = Value("zeroinitializer", tile.dtype, tile.lanes)
                for v in range(tile.vectors):
                    store_vector(b, zero, place(b, row, v * tile.lanes, tile.dtype))
                with count(b, 0, width) as lane:
                    value = load_vector(b, tile.dtype, 1, place(b, source, lane, tile.dtype))
                    store_vector(b, value, place(b, row, lane, tile.dtype))

            branch(b, less(b, tile.width - 1, width), whole, part)

    # --- sums ---------------------------------------------------------------------------------------------------------

    def _multiply(
        self, env: dict[str, Int], lines: Int, columns: Int, first: Int, last: Int, width: Int
    ) -> None:
        """Add the products of a block to the sums of all tiles and taps."""
        b, tile = self.b, self.tile
        g = self.bases[self.gemm.b.buffer.name]
        k, pixel = self._pixel(env)
        self._prefetch(env, g, add(b, k, mul(b, lines, columns)), mul(b, lines, columns), pixel, first, last)
        with count(b, first, last, tile.rows) as n:
            # The last tile overlaps the one before it.
            corner = least(b, n, _size(self.gemm.n) - tile.rows) if _size(self.gemm.n) % tile.rows else n
            at = evaluate(b, self.found.g, env | {self.gemm.k.name: k, self.gemm.n.name: corner})
            number = div(b, sub(b, n, first), tile.rows)
            with count(b, 0, _size(self.lines.tap)) as y, count(b, 0, _size(self.columns.tap)) as x:
                from_line = mul(b, mul(b, y, self.lines.pixels.dilation), self.line)
                from_column = mul(b, mul(b, x, self.columns.pixels.dilation), tile.width)
                held = place(b, self.held, add(b, from_line, from_column), tile.dtype)
                sums = self._tap(place(b, g, at, tile.source), held, lines, columns, pixel)
                tap = add(b, mul(b, y, _size(self.columns.tap)), x)
                to = place(b, self.sums, mul(b, self._number(number, tap), self.one_tile), tile.dtype)
                before = load_tile(b, tile, to)
                total = [
                    [b.add(old, new) for old, new in zip(*rows, strict=True)]
                    for rows in zip(before, sums, strict=True)
                ]
                store_tile(b, tile, total, to)

    def _prefetch(
        self, env: dict[str, Int], g: str, k: Int, pixels: Int, pixel: Int, first: Int, last: Int
    ) -> None:
        """Ask for the columns of g that the next block of pixels reads, in the order of memory: tiles read them in
        parts of a cache line, a row apart."""
        b, tile = self.b, self.tile
        b.module.declare("llvm.prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        at = evaluate(b, self.found.g, env | {self.gemm.k.name: k, self.gemm.n.name: first})
        start = place(b, g, at, tile.source)
        with count(b, 0, pixels) as number:
            row = place(b, start, mul(b, number, pixel), tile.source)
            with count(b, 0, sub(b, last, first), b.target.cache_line // tile.size) as column:
                pointer = place(b, row, column, tile.source)
                b.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")

    def _pixel(self, env: dict[str, Int]) -> tuple[Int, Int]:
        """The number of the pixel at env, and how far apart neighbours lie in g."""
        b, k, apart = self.b, 0, self.found.g.coefficient(self.gemm.k.name)
        assert apart is not None
        for axis in self.gemm.depth:
            k = add(b, mul(b, k, evaluate(b, axis.extent, env)), env[axis.name])
        return k, evaluate(b, apart, env)

    def _number(self, tile: Int, tap: Int) -> Int:
        return add(self.b, mul(self.b, tile, self.tap_count), tap)

    def _tap(self, g: str, held: str, lines: Int, columns: Int, pixel: Int) -> Accumulators:
        b, tile = self.b, self.tile
        flat = [value for row in zeros(tile) for value in row]
        apart = mul(b, pixel, _size(self.columns.pixel))
        with b.loop(value_of(b, 0), value_of(b, lines), 1, flat, runs=True) as scope:
            at = place(b, held, mul(b, mul(b, scope.index, self.lines.pixels.stride), self.line), tile.dtype)
            row = place(b, g, mul(b, scope.index, apart), tile.source)
            rows = [RowAddress(row, r) for r in range(tile.rows)]
            carried = [scope.carried[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]
            operands = Operands(rows, tile.source, pixel, at, self.columns.pixels.stride * tile.width)
            inner = accumulate(b, tile, operands, columns, carried)
            scope.next = [value for row in inner for value in row]
        return [scope.results[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]

    def _store(self, env: dict[str, Int], first: Int, last: Int, width: Int) -> None:
        b, tile = self.b, self.tile
        if self.plan.taps_run and tile.lanes > 1:
            self._store_taps(env, first, last, width)
            return
        with count(b, first, last, tile.rows) as n:
            corner = least(b, n, _size(self.gemm.n) - tile.rows) if _size(self.gemm.n) % tile.rows else n
            number = div(b, sub(b, n, first), tile.rows)
            with count(b, 0, _size(self.lines.tap)) as y, count(b, 0, _size(self.columns.tap)) as x:
                tap = add(b, mul(b, y, _size(self.columns.tap)), x)
                at = place(b, self.sums, mul(b, self._number(number, tap), self.one_tile), tile.dtype)
                inner = env | {self.gemm.n.name: corner, self.lines.tap.name: y, self.columns.tap.name: x}
                self.epilogue.from_scratch(tile, at, inner, sub(b, n, corner), tile.rows, width)

    def _store_taps(self, env: dict[str, Int], first: Int, last: Int, width: Int) -> None:
        """Store the sums where the taps of a channel lie side by side: squares are transposed in registers."""
        b, tile = self.b, self.tile
        stored, taps = self.plan.stored, {axis.name: 0 for axis in (self.lines.tap, self.columns.tap)}
        whole = sub(b, width, mod(b, width, tile.lanes))
        with count(b, first, last, tile.rows) as n:
            corner = least(b, n, _size(self.gemm.n) - tile.rows) if _size(self.gemm.n) % tile.rows else n
            number = div(b, sub(b, n, first), tile.rows)
            with count(b, sub(b, n, corner), tile.rows) as row:
                inner = env | taps | {self.gemm.n.name: add(b, corner, row)}
                out = place(b, self.bases[stored.out.name], evaluate(b, stored.index[0], inner), tile.dtype)
                at = add(b, mul(b, self._number(number, 0), self.one_tile), mul(b, row, tile.width))
                sums = place(b, self.sums, at, tile.dtype)
                with count(b, 0, whole, tile.lanes) as column:
                    to = place(b, out, mul(b, column, self.tap_count), tile.dtype)
                    self._store_square(place(b, sums, column, tile.dtype), to)
                with count(b, whole, width) as column, count(b, 0, self.tap_count) as tap:
                    found = place(b, sums, add(b, mul(b, tap, self.one_tile), column), tile.dtype)
                    to = place(b, out, add(b, mul(b, column, self.tap_count), tap), tile.dtype)
                    store_vector(b, load_vector(b, tile.dtype, 1, found), to)

    def _store_square(self, sums: str, to: str) -> None:
        """A vector of channels, all of its taps: a channel's last vector is stored whole where the taps behind it are
        stored after it."""
        b, tile, taps = self.b, self.tile, self.tap_count
        zero = Value("zeroinitializer", tile.dtype, tile.lanes)
        squares: list[list[Value]] = []
        for first in range(0, taps, tile.lanes):
            rows = [
                load_vector(b, tile.dtype, tile.lanes, place(b, sums, tap * self.one_tile, tile.dtype))
                for tap in range(first, min(first + tile.lanes, taps))
            ]
            squares.append(transpose(b, rows + [zero] * (tile.lanes - len(rows))))
        for channel in range(tile.lanes):
            for number, square in enumerate(squares):
                at = channel * taps + number * tile.lanes
                fits = at + tile.lanes <= tile.lanes * taps
                valid = tile.lanes if fits else taps - number * tile.lanes
                store_first(b, tile, square[channel], place(b, to, at, tile.dtype), valid)


def _size(axis: Axis) -> int:
    size = axis.extent.as_int()
    assert size is not None, "the digits of a weight's gradient have sizes that are known"
    return size
