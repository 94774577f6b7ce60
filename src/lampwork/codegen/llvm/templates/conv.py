"""Convolutions: a `Gemm` whose rows and depth have digits becomes a kernel of the ABI of `Kernel`.

    for item in [begin, end):                      one group, one block of rows, one panel of output channels
        for m0 in rows of the block:               tiles of rows x vectors
            where each row starts (its pixel at the first tap), and its place along each padded dimension
            for each tap:                          nested loops over all digits of k but the last
                skip it, if it lies in the padding for all rows of the tile
                each row's address: that of its pixel, or of zeros where the tap lies in the padding
                accumulate over the channels       microkernel.py: A by broadcasts, B from its packed panel
            epilogue

The rows of a tile are any pixels, of any images: their addresses are pointers in registers, so neither strides nor the
ends of lines nor padding cost anything inside the loop over channels, and nothing is copied. The offsets and places of
the rows wait on the stack between taps, where a tap reads each once: kept in registers they would push out what the
loop over channels needs.

For a dot product instruction the channels are words of neighbours, in A as they lie, in B's panels as packed. What it
does not take as it lies, or half types without one, are widened: A a block of channels at a time, into scratch; B in
the loop, read at its own size. Where A's numbers get an offset (int8), so do the zeros of the padding: the row of sums
ahead of a panel counts all taps.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.templates.choose import GemmConfig
from lampwork.codegen.llvm.templates.code import GemmCode, Stack, decode_batch, function, load_params
from lampwork.codegen.llvm.templates.conv_plan import ConvPlan
from lampwork.codegen.llvm.templates.epilogue import Epilogue, needs_checks, valid_columns
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    both,
    branch,
    count,
    div,
    evaluate,
    even_part,
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
from lampwork.codegen.llvm.templates.left import widen_run
from lampwork.codegen.llvm.templates.microkernel import (
    Accumulators,
    Operands,
    Prefetch,
    RowAddress,
    Tile,
    accumulate,
    first_sums,
    store_tile,
    zeros,
)
from lampwork.codegen.llvm.templates.plan import is_short, packed_batch
from lampwork.codegen.target import Target
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.expr import definition_exprs, indices
from lampwork.loops.ir.nodes import DType
from lampwork.loops.ir.windows import LONGEST_RUN

WIDENED = 256
"""Channels (or words of them) that are widened at a time: those of a tile stay in the first-level cache."""


def emit_conv(
    plan: ConvPlan, name: str, target: Target, config: GemmConfig, *, proven: bool = False
) -> GemmCode:
    """The kernel of a convolution. `proven`: all of its accesses stay in their buffers, whatever its symbols say."""
    return _Emission(plan, name, target, config, proven).run()


class _Emission:
    """One run of emit_conv."""

    def __init__(self, plan: ConvPlan, name: str, target: Target, config: GemmConfig, proven: bool) -> None:
        self.plan, self.name, self.config, self.gemm = plan, name, config, plan.gemm
        self.dtype = plan.gemm.a.buffer.dtype
        self.b = Builder(Module(), target)
        self.error = self.b.name("error") if not proven and needs_checks(plan.gemm) else None
        self.emitter = Emitter(
            self.b,
            written=frozenset((plan.gemm.out.name,)),
            error_flag=self.error,
            proven=proven,
            dot=target.dot(self.dtype),
        )
        self.tile = Tile.of(config.rows, config.vectors, target, self.dtype)
        self.right: DType = self.tile.source if self.tile.widens else self.tile.dtype
        self.columns = self.tile.width * (self.tile.steps if self.tile.widens else 1)
        """Elements of `right` in a row of a panel."""
        self.panels = (plan.gemm.n.extent + (self.tile.width - 1)) // self.tile.width
        self.whole_tiles = (plan.gemm.m.extent % config.rows).as_int() == 0
        self.stack = Stack(self.b)
        # Taps that no row of a batch has are left out; others lie in the padding for some rows, or for those of a tile.
        digits = {axis.name for axis in plan.gemm.rows}
        # With an offset every tap is multiplied, as the sums begin without the offset times the weights of all.
        self.before = 1 if self.tile.offset else 0
        self.places = [place for place in plan.places if self.before or place.index.variables() & digits]
        self.conditions = [place for place in plan.places if place not in self.places]
        self.skips = bool(self.places) and not self.before

    def run(self) -> GemmCode:
        gemm, b, plan = self.gemm, self.b, self.plan
        axes = (*gemm.batch, gemm.m, gemm.n, gemm.k, *gemm.rows, *gemm.depth)
        used = [index for expr in definition_exprs(gemm) for index in indices(expr)]
        used += [elements_of(buffer) for buffer in plan.params]
        used += [each for found in plan.places for each in (found.index, found.last)]
        self.bases, sizes, env = load_params(
            b, plan.params, [*(axis.extent for axis in axes), *gemm.index, plan.a, plan.blocks, *used]
        )
        self.epilogue = Epilogue(gemm, self.emitter, self.bases, self.name)
        # k and its last digit count what is multiplied at once.
        self.m_size, self.k_size, self.channels = (
            evaluate(b, size, env)
            for size in (
                gemm.m.extent,
                gemm.k.extent // self.tile.steps,
                gemm.depth[-1].extent // self.tile.steps,
            )
        )
        self._allocate()
        panel_count, block_count = evaluate(b, self.panels, env), evaluate(b, plan.blocks, env)
        # Blocks of one size, so that threads have as much to do.
        block_rows = even_part(b, self.m_size, block_count, self.tile.rows)
        with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
            item = items.index
            panel = mod(b, item, panel_count)
            first = mul(b, mod(b, div(b, item, panel_count), block_count), block_rows)
            last = least(b, add(b, first, block_rows), self.m_size)
            batch = decode_batch(b, gemm.batch, item, mul(b, panel_count, block_count), env)
            self._item(panel, panel_count, (first, last), env | batch)
        extent = self.panels * plan.blocks
        for axis in gemm.batch:
            extent = extent * axis.extent
        rows = (gemm.m.extent + (plan.blocks - 1)) // plan.blocks
        work = rows * (2 * self.tile.width) * gemm.k.extent
        text = function(b, self.name, self.error)
        return GemmCode(
            self.name, text, plan.params, sizes, extent, work, b.target.thread_work, self.stack.bytes
        )

    # --- the stack ----------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Room for a tile of sums, for the state of its rows, and for zeros."""
        b, tile = self.b, self.tile
        if self.error is not None:
            b.line(f"{self.error} = alloca i64")
            b.line(f"store i64 0, ptr {self.error}")
        self.sums = self.stack.array("sums", tile.rows * tile.width, tile.element, tile.size)
        self.offsets = self.stack.array("offsets", tile.rows, "i64", 8)
        self.row_places = [self.stack.array("places", tile.rows, "i64", 8) for _ in self.places]
        self.spans = self.stack.array("spans", 2 * len(self.places), "i64", 8) if self.skips else ""
        self.left = (
            self.stack.array("left", tile.rows * WIDENED, tile.element, tile.size) if tile.widens else ""
        )
        self.zeros = ""
        if self.places:
            self.zeros = self.stack.array("zeros", LONGEST_RUN, tile.element, tile.size)
            zero = Value("zeroinitializer", tile.dtype, tile.lanes)
            with count(b, 0, least(b, add(b, self.channels, tile.lanes - 1), LONGEST_RUN), tile.lanes) as at:
                where = place(b, self.zeros, at, tile.dtype)
                b.line(f"store {zero.type} {zero.text}, ptr {where}, align {tile.size}")

    # --- one work item ------------------------------------------------------------------------------------------------

    def _item(self, panel: Int, panel_count: Int, rows: tuple[Int, Int], env: dict[str, Int]) -> None:
        """A panel's columns of rows first to last."""
        b, gemm, tile = self.b, self.gemm, self.tile
        first, last = rows
        n0 = mul(b, panel, tile.width)
        env = env | {gemm.n.name: n0}
        columns = valid_columns(self.emitter, gemm, tile, n0, env)
        number: Int = 0
        for axis in packed_batch(gemm):
            number = add(b, mul(b, number, evaluate(b, axis.extent, env)), env[axis.name])
        row = mul(b, add(b, mul(b, number, panel_count), panel), add(b, self.k_size, self.before))
        b_start = place(b, self.bases[gemm.b.buffer.name], mul(b, row, self.columns), self.right)
        start = b_start
        if self.before:
            b_start = place(b, start, self.columns, self.right)
        tiles = div(b, add(b, sub(b, last, first), tile.rows - 1), tile.rows)
        stride = div(b, add(b, tiles, tile.width - 1), tiles)
        with count(b, first, last, tile.rows, runs=True) as m0:
            self._start_rows(m0, env)
            inner = env | {gemm.m.name: m0}
            ahead = mul(
                b, self.k_size, add(b, mul(b, div(b, sub(b, m0, first), tile.rows), stride), tile.width)
            )
            prefetch = Prefetch(place(b, b_start, ahead, self.right), stride)
            sums = first_sums(b, tile, start) if self.before else zeros(tile)
            sums = self._taps(0, env, b_start, prefetch, sums)
            valid = tile.rows if self.whole_tiles else least(b, tile.rows, sub(b, last, m0))
            self._finish(sums, inner, valid, columns)

    def _finish(self, sums: Accumulators, env: dict[str, Int], valid: Int, columns: Int) -> None:
        b, tile = self.b, self.tile

        def through_scratch() -> None:
            store_tile(b, tile, sums, self.sums)
            self.epilogue.from_scratch(tile, self.sums, env, 0, valid, columns)

        fits: Value | bool = False
        if is_short(self.gemm.value, self.emitter.dot):
            fits = both(b, less(b, tile.rows - 1, valid), less(b, tile.width - 1, columns))
        branch(b, fits, lambda: self.epilogue.from_registers(tile, sums, env), through_scratch)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _start_rows(self, m0: Int, env: dict[str, Int]) -> None:
        """Write down where each row of the tile at m0 starts, its places, and the least and greatest place of them all;
        rows past the last one repeat it."""
        b, plan = self.b, self.plan
        digits = self._digits_of(m0, env)
        sizes = [evaluate(b, axis.extent, env) for axis in self.gemm.rows]
        last = sub(b, self.m_size, 1)
        places: list[list[Int]] = []
        for r in range(self.tile.rows):
            inside = env | {axis.name: d for axis, d in zip(self.gemm.rows, digits, strict=True)}
            self._write(self.offsets, r, evaluate(b, plan.of_rows(plan.a), inside))
            places.append([evaluate(b, plan.of_rows(found.index), inside) for found in self.places])
            for array, at in zip(self.row_places, places[-1], strict=True):
                self._write(array, r, at)
            if r + 1 < self.tile.rows:
                digits = self._next(digits, sizes, self.whole_tiles or less(b, add(b, m0, r), last))
        if self.skips:
            for number, along in enumerate(zip(*places, strict=True)):
                self._write(self.spans, 2 * number, reduce(partial(least, b), along))
                self._write(self.spans, 2 * number + 1, reduce(partial(greatest, b), along))

    def _write(self, array: str, number: int, value: Int) -> None:
        where = place(self.b, array, number, "i64")
        self.b.line(f"store i64 {text_of(value)}, ptr {where}, align 8")

    def _read(self, array: str, number: int) -> Value:
        where = place(self.b, array, number, "i64")
        return self.b.emit(f"load i64, ptr {where}, align 8", "i64", 1, pure=False)

    def _digits_of(self, m: Int, env: Mapping[str, Int]) -> list[Int]:
        b, found = self.b, list[Int]()
        for axis in reversed(self.gemm.rows[1:]):
            size = evaluate(b, axis.extent, env)
            found.append(mod(b, m, size))
            m = div(b, m, size)
        return [m, *reversed(found)]

    def _next(self, digits: list[Int], sizes: list[Int], moves: Value | bool) -> list[Int]:
        """The digits of the number after, or the same where `moves` is false."""
        b = self.b
        carry: Int = self._as_int(moves)
        found: list[Int] = []
        for digit, size in zip(reversed(digits[1:]), reversed(sizes[1:]), strict=True):
            more = add(b, digit, carry)
            stays = less(b, more, size)
            if isinstance(stays, bool):
                found.append(more if stays else 0)
                carry = 0 if stays else 1
                continue
            found.append(b.select(stays, value_of(b, more), value_of(b, 0)))
            carry = b.select(stays, value_of(b, 0), value_of(b, 1))
        return [add(b, digits[0], carry), *reversed(found)]

    def _as_int(self, condition: Value | bool) -> Int:
        if isinstance(condition, bool):
            return int(condition)
        return self.b.convert("zext", condition, "i64")

    # --- depth --------------------------------------------------------------------------------------------------------

    def _taps(
        self, level: int, env: dict[str, Int], b_start: str, prefetch: Prefetch, sums: Accumulators
    ) -> Accumulators:
        """The sums with all taps added that the digits of k from `level` on make."""
        b, tile = self.b, self.tile
        if level == len(self.gemm.depth) - 1:
            return self._tap(env, b_start, prefetch, sums)
        axis = self.gemm.depth[level]
        size = evaluate(b, axis.extent, env)
        if size == 1:
            return self._taps(level + 1, env | {axis.name: 0}, b_start, prefetch, sums)
        flat = [value for row in sums for value in row]
        with b.loop(value_of(b, 0), value_of(b, size), 1, flat, runs=True) as scope:
            carried = [scope.carried[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]
            inner = self._taps(level + 1, env | {axis.name: scope.index}, b_start, prefetch, carried)
            scope.next = [value for row in inner for value in row]
        return [scope.results[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]

    def _tap(self, env: dict[str, Int], b_start: str, prefetch: Prefetch, sums: Accumulators) -> Accumulators:
        """The sums with one tap added, if the batch and any row of the tile has it."""
        b, tile = self.b, self.tile
        exists = self._exists(env)
        if isinstance(exists, bool):
            return self._channels(env, b_start, prefetch, sums)
        yes, end, before = b.new_label("tap"), b.new_label("taps"), b.block
        b.branch_if(exists, yes, end)
        b.start(yes)
        with b.scope():
            added = self._channels(env, b_start, prefetch, sums)
        inside = b.block
        b.branch(end)
        b.start(end)

        def either(new: Value, old: Value) -> Value:
            text = f"phi {new.type} [ {new.text}, %{inside} ], [ {old.text}, %{before} ]"
            return b.emit(text, new.dtype, new.lanes, pure=False)

        return [[either(added[r][v], sums[r][v]) for v in range(tile.vectors)] for r in range(tile.rows)]

    def _exists(self, env: Mapping[str, Int]) -> Value | bool:
        """Whether a tap lies inside for the batch and for any row of the tile."""
        b, exists = self.b, True
        for found in self.conditions:
            at, last = value_of(b, evaluate(b, found.index, env)), evaluate(b, found.last, env)
            exists = both(b, exists, b.emit(f"icmp ule i64 {at.text}, {text_of(last)}", "bool", 1))
        if not self.skips:
            return exists
        env = {**env, self.gemm.depth[-1].name: 0}
        for number, found in enumerate(self.places):
            shift, last = evaluate(b, self.plan.of_depth(found.index), env), evaluate(b, found.last, env)
            low, high = (add(b, self._read(self.spans, 2 * number + end), shift) for end in (0, 1))
            exists = both(b, exists, less(b, low, add(b, last, 1)))
            exists = both(b, exists, less(b, -1, high))
        return exists

    def _channels(
        self, env: dict[str, Int], b_start: str, prefetch: Prefetch, sums: Accumulators
    ) -> Accumulators:
        b, plan, tile = self.b, self.plan, self.tile
        env = env | {self.gemm.depth[-1].name: 0}
        shift = evaluate(b, plan.of_depth(plan.a), env)
        shifts = [evaluate(b, plan.of_depth(found.index), env) for found in self.places]
        lasts = [evaluate(b, found.last, env) for found in self.places]
        base = self.bases[self.gemm.a.buffer.name]
        rows: list[RowAddress] = []
        for r in range(tile.rows):
            pointer = place(b, base, add(b, self._read(self.offsets, r), shift), tile.source)
            inside: Value | bool = True
            for number, (by, last) in enumerate(zip(shifts, lasts, strict=True)):
                at = value_of(b, add(b, self._read(self.row_places[number], r), by))
                # Unsigned: what is below 0 is above the last, too.
                inside = both(b, inside, b.emit(f"icmp ule i64 {at.text}, {text_of(last)}", "bool", 1))
            if isinstance(inside, Value):
                pointer = b.emit(
                    f"select i1 {inside.text}, ptr {pointer}, ptr {self.zeros}", "i64", 1, pure=False
                ).text
            rows.append(RowAddress(pointer, 0))
        first: Int = 0
        for axis in self.gemm.depth[:-1]:
            first = add(b, mul(b, first, evaluate(b, axis.extent, env)), env[axis.name])
        first = mul(b, first, self.channels)
        if tile.widens:
            return self._widened(rows, place(b, b_start, mul(b, first, self.columns), self.right), sums)
        here = place(b, b_start, mul(b, first, tile.width), tile.dtype)
        ahead = Prefetch(place(b, prefetch.base, mul(b, first, prefetch.stride), tile.dtype), prefetch.stride)
        operands = Operands(
            rows, tile.source, tile.steps, here, tile.width, ahead if self.config.prefetch else None
        )
        return accumulate(b, tile, operands, self.channels, sums, self.config.unroll)

    def _widened(self, rows: list[RowAddress], b_start: str, sums: Accumulators) -> Accumulators:
        """The sums with one tap added: blocks of its channels are copied into scratch, as they are multiplied."""
        b, tile = self.b, self.tile
        flat = [value for row in sums for value in row]
        with b.loop(value_of(b, 0), value_of(b, self.channels), WIDENED, flat, runs=True) as scope:
            depth = least(b, WIDENED, sub(b, self.channels, scope.index))
            copies: list[RowAddress] = []
            for r, row in enumerate(rows):
                to = place(b, self.left, r * WIDENED, tile.dtype)
                at = place(b, row.base, mul(b, scope.index, tile.steps), tile.source)
                widen_run(b, tile, at, to, depth)
                copies.append(RowAddress(self.left, r * WIDENED))
            here = place(b, b_start, mul(b, scope.index, self.columns), self.right)
            carried = [scope.carried[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]
            operands = Operands(copies, tile.dtype, 1, here, self.columns, right=self.right)
            inner = accumulate(b, tile, operands, depth, carried, self.config.unroll)
            scope.next = [value for row in inner for value in row]
        return [scope.results[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]
