"""Depthwise convolutions: a `Gemm` whose A depends on n becomes a kernel of the ABI of `Kernel`.

    for item in [begin, end):                      a block of lines, a block of columns
        for line, for x in the line by tiles:
            which outer taps have a line, where its positions lie:  a table of pointers
            for n in the columns by vectors:
                for each outer tap that has a line:
                    for each position:             one load; a fused multiply-add for each (pixel, tap) that reads it
                epilogue

A tile is some neighbouring pixels of a line by one vector of columns, in registers. A tap outside of its image in an
outer dimension is not in the table, so a border costs nothing; a position outside of the line points to zeros. So there
is one version of the code, without masks, for the middle of an image and for its borders, and nothing is copied.

Each multiply-add needs a position or a weight from memory where they are not used twice: the loads of a position serve
all taps of its line, those of a weight all pixels of the tile, which leaves both units of a core that can do as many
loads as multiply-adds half free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.convert import convert
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.templates.code import GemmCode, Stack, function, load_params
from lampwork.codegen.llvm.templates.depthwise_plan import DepthwiseConfig, DepthwisePlan
from lampwork.codegen.llvm.templates.epilogue import Epilogue
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    both,
    branch,
    count,
    div,
    evaluate,
    even_part,
    least,
    less,
    mod,
    mul,
    place,
    sub,
    text_of,
    value_of,
)
from lampwork.codegen.llvm.templates.microkernel import Accumulators, Tile, load_vector, store_tile, zeros
from lampwork.codegen.llvm.templates.plan import is_short
from lampwork.codegen.llvm.types import itemsize, mangled, memory_type, vector_type
from lampwork.codegen.target import Target
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.expr import indices
from lampwork.loops.ir.index import ONE, Index
from lampwork.loops.ir.windows import Place

_Write = Callable[[dict[str, Int], Int, Int], Int]
"""Called with the digits of a tap, its number, and the rows of the table so far; gives how many there are then."""


def emit_depthwise(plan: DepthwisePlan, name: str, target: Target, config: DepthwiseConfig) -> GemmCode:
    """The kernel of a depthwise convolution."""
    return _Emission(plan, name, target, config).run()


class _Emission:
    """One run of emit_depthwise."""

    def __init__(self, plan: DepthwisePlan, name: str, target: Target, config: DepthwiseConfig) -> None:
        self.plan, self.name, self.config, self.gemm = plan, name, config, plan.gemm
        self.dtype = plan.gemm.a.buffer.dtype
        self.b = Builder(Module(), target)
        self.error = None if plan.proven else self.b.name("error")
        self.emitter = Emitter(
            self.b,
            written=frozenset((plan.gemm.out.name,)),
            error_flag=self.error,
            proven=plan.proven,
            dot=target.dot(self.dtype),
        )
        self.tile = Tile.of(config.pixels, 1, target, self.dtype)
        self.positions = (config.pixels - 1) * plan.stride + (plan.taps - 1) * plan.dilation + 1
        self.readers: list[list[tuple[int, int]]] = [[] for _ in range(self.positions)]
        for pixel in range(config.pixels):
            for tap in range(plan.taps):
                self.readers[pixel * plan.stride + tap * plan.dilation].append((pixel, tap))
        self.stack = Stack(self.b)

    def run(self) -> GemmCode:
        gemm, b, plan = self.gemm, self.b, self.plan
        used = [*gemm.index, *indices(gemm.value), plan.line, plan.start, plan.step, plan.b]
        used += [axis.extent for axis in (gemm.m, gemm.n, gemm.k, *gemm.rows, *gemm.depth)]
        used += [elements_of(buffer) for buffer in plan.params]
        for found in self._places():
            used += [found.index, found.last]
        self.bases, sizes, self.env = load_params(b, plan.params, used)
        self.epilogue = Epilogue(gemm, self.emitter, self.bases, self.name)
        self.length, self.columns = (evaluate(b, axis.extent, self.env) for axis in (plan.pixel, gemm.n))
        self._allocate()
        lines = ONE
        for axis in gemm.rows[:-1]:
            lines = lines * axis.extent
        blocks = (lines + (self.config.lines - 1)) // self.config.lines
        parts = (gemm.n.extent + (self.config.columns - 1)) // self.config.columns
        part_count, line_count = evaluate(b, parts, self.env), evaluate(b, lines, self.env)
        # Blocks of one size, so that threads have as much to do.
        block_lines = even_part(b, line_count, evaluate(b, blocks, self.env))
        with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
            part, block = mod(b, items.index, part_count), div(b, items.index, part_count)
            first = mul(b, part, self.config.columns)
            width = least(b, self.config.columns, sub(b, self.columns, first))
            line = mul(b, block, block_lines)
            with count(b, line, least(b, add(b, line, block_lines), line_count), runs=True) as at:
                self._line(at, first, width)
        taps = Index.const(2 * plan.taps * plan.inputs)
        for axis in plan.outer_taps:
            taps = taps * axis.extent
        work = plan.pixel.extent * (self.config.lines * self.config.columns) * taps
        text = function(b, self.name, self.error)
        return GemmCode(
            self.name,
            text,
            plan.params,
            sizes,
            blocks * parts,
            work,
            b.target.thread_work,
            self.stack.bytes,
        )

    def _places(self) -> tuple[Place, ...]:
        return self.plan.lines if self.plan.across is None else (*self.plan.lines, self.plan.across)

    # --- the stack ----------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Room for a tile of sums, for the table, and for zeros."""
        b, tile, plan = self.b, self.tile, self.plan
        if self.error is not None:
            b.line(f"{self.error} = alloca i64")
            b.line(f"store i64 0, ptr {self.error}")
        self.sums = self.stack.array("sums", tile.rows * tile.width, tile.element, tile.size)
        rows = 1
        for axis in plan.outer_taps:
            rows *= axis.extent.as_int() or 1
        self.table = self.stack.array("table", rows * (self.positions + 1), "ptr", 8)
        self.zeros = ""
        if plan.across is not None or not self.config.whole_tiles:
            channels = -(-self.config.columns // plan.outputs) * plan.inputs + self._span(tile.lanes)
            size = -(-channels // tile.lanes) * tile.lanes
            self.zeros = self.stack.array("zeros", size, memory_type(tile.source), itemsize(tile.source))
            zero = Value("zeroinitializer", tile.source, tile.lanes)
            vector = vector_type(memory_type(tile.source), tile.lanes)
            with count(b, 0, size, tile.lanes) as at:
                where = place(b, self.zeros, at, tile.source)
                b.line(f"store {vector} {zero.text}, ptr {where}, align {itemsize(tile.source)}")

    def _span(self, lanes: int) -> int:
        """Channels that a vector of columns reads."""
        return max(1, lanes // self.plan.outputs) * self.plan.inputs

    # --- lines --------------------------------------------------------------------------------------------------------

    def _line(self, line: Int, first: Int, width: Int) -> None:
        """Columns first to first + width of a line."""
        b, tile = self.b, self.tile
        env, rest = dict(self.env), line
        for axis in reversed(self.gemm.rows[1:-1]):
            size = evaluate(b, axis.extent, env)
            env[axis.name], rest = mod(b, rest, size), div(b, rest, size)
        if len(self.gemm.rows) > 1:
            env[self.gemm.rows[0].name] = rest
        m = mul(b, line, self.length)
        with count(b, 0, self.length, tile.rows, runs=True) as x:
            valid = tile.rows if self.config.whole_tiles else least(b, tile.rows, sub(b, self.length, x))
            inside = env | {self.plan.pixel.name: x}
            rows = self._tabulate(inside, first, valid)
            self._columns(rows, self.env | {self.gemm.m.name: add(b, m, x)}, first, width, valid)

    def _tabulate(self, env: Mapping[str, Int], first: Int, valid: Int) -> Int:
        """Write the table for the tile at env's pixel and the columns from `first` on: for each outer tap that has a
        line a row of pointers, to its weights and to its positions. How many rows there are."""
        b, plan, tile = self.b, self.plan, self.tile
        channel = mul(b, div(b, first, plan.outputs), plan.inputs)
        start = add(b, evaluate(b, plan.start, env), channel)
        exists = [self._exists(number, env, valid) for number in range(self.positions)]
        step = evaluate(b, plan.step, env)
        shifts = [mul(b, step, number) for number in range(self.positions)]
        a, weights = self.bases[self.gemm.a.buffer.name], self.bases[self.gemm.b.buffer.name]

        def write(env: dict[str, Int], tap: Int, written: Int) -> Int:
            at = place(b, self.table, mul(b, written, self.positions + 1), "i64")
            k = {self.gemm.k.name: mul(b, tap, plan.taps * plan.inputs), self.gemm.n.name: first}
            pointer = place(b, weights, evaluate(b, plan.b, {**env, **k}), tile.source)
            b.line(f"store ptr {pointer}, ptr {at}, align 8")
            base = place(b, a, add(b, evaluate(b, plan.line, env), start), tile.source)
            for number, (here, shift) in enumerate(zip(exists, shifts, strict=True)):
                pointer = place(b, base, shift, tile.source)
                if isinstance(here, Value):
                    pointer = b.emit(
                        f"select i1 {here.text}, ptr {pointer}, ptr {self.zeros}", "i64", 1, pure=False
                    ).text
                b.line(f"store ptr {pointer}, ptr {place(b, at, number + 1, 'i64')}, align 8")
            valid: Value | bool = True
            for found in plan.lines:
                valid = both(b, valid, self._holds(evaluate(b, found.index, env), found, env))
            more: Int = 1 if isinstance(valid, bool) else b.convert("zext", valid, "i64")
            return add(b, written, more)

        return self._each_tap(0, dict(env), 0, 0, write)

    def _each_tap(self, level: int, env: dict[str, Int], tap: Int, written: Int, write: _Write) -> Int:
        """`write` for all outer taps; the number of rows written in the end."""
        b = self.b
        if level == len(self.plan.outer_taps):
            return write(env, tap, written)
        axis = self.plan.outer_taps[level]
        size = axis.extent.as_int() or 1
        if size == 1:
            return self._each_tap(level + 1, env | {axis.name: 0}, tap, written, write)
        with b.loop(value_of(b, 0), value_of(b, size), 1, [value_of(b, written)], runs=True) as scope:
            here = add(b, mul(b, tap, size), scope.index)
            after = self._each_tap(level + 1, env | {axis.name: scope.index}, here, scope.carried[0], write)
            scope.next = [value_of(b, after)]
        return scope.results[0]

    def _holds(self, at: Int, found: Place, env: Mapping[str, Int]) -> Value:
        """0 <= at <= last, unsigned: what is below 0 is above the last, too."""
        b = self.b
        last = evaluate(b, found.last, env)
        return b.emit(f"icmp ule i64 {text_of(at)}, {text_of(last)}", "bool", 1)

    def _exists(self, number: int, env: Mapping[str, Int], valid: Int) -> Value | bool:
        """Whether a position of the tile is one of the line, and is read by one of its `valid` pixels."""
        b, plan = self.b, self.plan
        reach = self.positions - 1 - number  # in front of the last position
        used: Value | bool = True
        if not self.config.whole_tiles:
            missing = mul(b, sub(b, self.tile.rows, valid), plan.stride)
            used = less(b, missing, reach + 1)
        if plan.across is None:
            return used
        at = add(b, evaluate(b, plan.across.index, env), number * plan.apart)
        return both(b, used, self._holds(at, plan.across, env))

    # --- columns ------------------------------------------------------------------------------------------------------

    def _columns(self, rows: Int, env: dict[str, Int], first: Int, width: Int, valid: Int) -> None:
        b, lanes = self.b, self.tile.lanes
        if self.config.whole_vectors or lanes == 1:
            with count(b, 0, width, lanes, runs=True) as column:
                self._vector(rows, env, first, column, lanes, lanes, valid)
            return
        if b.target.has_masks:
            with count(b, 0, width, lanes, runs=True) as column:
                some = least(b, lanes, sub(b, width, column))
                self._vector(rows, env, first, column, lanes, some, valid)
            return
        whole = sub(b, width, mod(b, width, lanes))
        with count(b, 0, whole, lanes) as column:
            self._vector(rows, env, first, column, lanes, lanes, valid)
        with count(b, whole, width) as column:
            self._vector(rows, env, first, column, 1, 1, valid)

    def _vector(
        self, rows: Int, env: dict[str, Int], first: Int, column: Int, lanes: int, some: Int, valid: Int
    ) -> None:
        """The first `some` of `lanes` columns, for the tile that is in the table."""
        b, plan = self.b, self.plan
        tile = Tile(self.tile.rows, 1, lanes, self.tile.dtype, self.tile.source)
        step = evaluate(b, plan.b.coefficient(self.gemm.k.name) or ONE, env)
        mask = None if some == lanes else b.first_lanes(value_of(b, some), lanes)
        start = self._channel(first, column, lanes)
        flat = [value for row in zeros(tile) for value in row]
        runs = not plan.lines
        with b.loop(value_of(b, 0), value_of(b, rows), 1, flat, runs=runs) as scope:
            sums = list(scope.carried)
            at = place(b, self.table, mul(b, scope.index, self.positions + 1), "i64")
            own = place(b, self._pointer(at, 0), column, tile.source)
            weights = [
                self._load(place(b, own, mul(b, step, number), tile.source), lanes, mask)
                for number in range(plan.taps * plan.inputs)
            ]
            for number, readers in enumerate(self.readers):
                if not readers:
                    continue
                where = place(b, self._pointer(at, number + 1), start, tile.source)
                for channel, value in enumerate(self._inputs(where, lanes, some)):
                    for pixel, tap in readers:
                        weight = weights[tap * plan.inputs + channel]
                        sums[pixel] = b.fma(value, weight, sums[pixel])
            scope.next = sums
        self._finish(tile, [[each] for each in scope.results], env, add(b, first, column), valid, some)

    def _channel(self, first: Int, column: Int, lanes: int) -> Int:
        """The first input channel of a vector of columns, from that of column `first` on."""
        b, plan = self.b, self.plan
        if plan.outputs == plan.inputs and lanes % plan.outputs == 0:
            return column
        before = div(b, first, plan.outputs)
        return mul(b, sub(b, div(b, add(b, first, column), plan.outputs), before), plan.inputs)

    def _inputs(self, where: str, lanes: int, some: Int) -> list[Value]:
        """The channels of each column's group, one vector a channel, from the group's first channels on at `where`."""
        b, plan = self.b, self.plan
        span = self._span(lanes)
        known = some == lanes or span == plan.inputs
        mask = None
        if not known:
            mask = b.first_lanes(value_of(b, mul(b, div(b, some, plan.outputs), plan.inputs)), span)
        loaded = self._load(where, span, mask)
        if span == lanes and plan.inputs == 1:
            return [loaded]
        return [
            self._shuffled(loaded, [lane // plan.outputs * plan.inputs + channel for lane in range(lanes)])
            for channel in range(plan.inputs)
        ]

    def _shuffled(self, value: Value, order: list[int]) -> Value:
        b, lanes = self.b, len(order)
        if value.lanes == 1:
            return b.widen(value, lanes)
        if lanes == 1:
            return b.emit(f"extractelement {b.typed(value)}, i64 {order[0]}", value.dtype, 1)
        places = ", ".join(f"i32 {each}" for each in order)
        return b.emit(
            f"shufflevector {value.type} {value.text}, {value.type} poison, <{lanes} x i32> <{places}>",
            value.dtype,
            lanes,
        )

    def _load(self, where: str, lanes: int, mask: Value | None) -> Value:
        """As it is multiplied: half types are widened."""
        b, tile = self.b, self.tile
        if mask is None:
            return convert(b, load_vector(b, tile.source, lanes, where), tile.dtype)
        element = memory_type(tile.source)
        vector = vector_type(element, lanes)
        text = (
            f"call {vector} @llvm.masked.load.{mangled(element, lanes)}.p0(ptr {where}, "
            f"i32 {itemsize(tile.source)}, {mask.type} {mask.text}, {vector} zeroinitializer)"
        )
        return convert(b, b.emit(text, tile.source, lanes, pure=False), tile.dtype)

    def _pointer(self, row: str, number: int) -> str:
        where = place(self.b, row, number, "i64")
        return self.b.emit(f"load ptr, ptr {where}, align 8", "i64", 1, pure=False).text

    def _finish(
        self, tile: Tile, sums: Accumulators, env: dict[str, Int], n: Int, valid: Int, columns: Int
    ) -> None:
        b = self.b
        env = env | {self.gemm.n.name: n}

        def through_scratch() -> None:
            store_tile(b, tile, sums, self.sums)
            self.epilogue.from_scratch(tile, self.sums, env, 0, valid, columns)

        fits: Value | bool = False
        if is_short(self.gemm.value, self.emitter.dot, converts_f16=b.target.has_f16c):
            fits = both(b, less(b, tile.rows - 1, valid), less(b, tile.lanes - 1, columns))
        branch(b, fits, lambda: self.epilogue.from_registers(tile, sums, env), through_scratch)
