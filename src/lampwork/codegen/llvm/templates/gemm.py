"""GEMM: `emit_gemm` makes of a `Gemm` definition a kernel of the ABI of `Kernel`.

    for item in [begin, end):                      one batch element, one block of rows, one panel of columns
        for k0 in 0, k_block, ...                  (one turn for a short K)
            rearrange B's panel into scratch       (only where B does not lie in rows of consecutive columns)
            for m0 in rows of the block:           tiles of rows x vectors
                accumulate                         microkernel.py
                add the sums of the blocks before, epilogue (epilogue.py); or put the sums aside

The last tile of rows overlaps the one before it, so one micro-kernel does for every M of at least as many rows; rows
computed twice are stored once. A symbolic M may also be smaller: then a tile of few rows repeats the last one. Columns
past N are zeros in a packed B, computed and not stored.

What was measured on one core of a Zen 5 (AVX-512, peak 238-263 GFLOP/s by its clock), float32, 8 x 48 tile:

    M=128, K x N = 768 x 768, 768 x 3072, 3072 x 768     225-243 GFLOP/s   (oneDNN, packed: 190-210, MKL: 88-97)
    the same with weights that come from memory          230-241           (oneDNN: 200-212)
    M=32 and M=16, weights from memory                   215-230, 205      (162 and 117 without prefetching)
    attention, 12 heads of 128 x 64 x 128                200-215           (MKL: 80-90)
    M=1, weight as it lies                               19-34 GB/s, all that memory gives

A is read in place by broadcasts; copying it into blocks gained nothing, also for rows that are multiples of 4096 bytes
apart. Blocks of K are there for the rounding errors, not for the caches: with and without them the speed is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.templates.choose import (
    UNKNOWN,
    GemmConfig,
    Likely,
    choose_config,
    dot_config,
)
from lampwork.codegen.llvm.templates.code import GemmCode, Stack, decode_batch, function, load_params
from lampwork.codegen.llvm.templates.epilogue import Epilogue, flattened, needs_checks, valid_columns
from lampwork.codegen.llvm.templates.gemv import DotOperands, dot_tile
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    both,
    branch,
    ceil_div,
    count,
    div,
    evaluate,
    least,
    less,
    mod,
    mul,
    place,
    sub,
    value_of,
)
from lampwork.codegen.llvm.templates.left import LeftScratch, copy_left
from lampwork.codegen.llvm.templates.microkernel import (
    Accumulators,
    LinePrefetch,
    Operands,
    Prefetch,
    RowAddress,
    Tile,
    accumulate,
    first_sums,
    row_addresses,
    store_tile,
    with_sums,
    zeros,
)
from lampwork.codegen.llvm.templates.pack import Source, pack_panel, widen_panel, write_first_sums
from lampwork.codegen.llvm.templates.plan import (
    Plan,
    is_short,
    known_rows,
    packed_batch,
    plan_gemm,
    split_offset,
    supports,
)
from lampwork.codegen.target import Target
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.expr import definition_exprs, indices
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Gemm

__all__ = ["emit_gemm", "supports"]


def emit_gemm(
    gemm: Gemm,
    name: str,
    target: Target,
    config: GemmConfig | None = None,
    likely: Likely = UNKNOWN,
    module: Module | None = None,
) -> GemmCode:
    """The kernel of one `Gemm`; `likely`: what symbolic sizes will probably be. `module`: what it becomes a part of.

    Raises CodegenError for what `supports` refuses.
    """
    if not supports(gemm, target):
        raise CodegenError(f"no template for the gemm {gemm.out.name!r} of {gemm.a.buffer.dtype}")
    plan = plan_gemm(gemm, target, likely)
    m, n, k = (size.as_int() for size in (gemm.m.extent, gemm.n.extent, plan.words))
    if plan.mode == "dot":
        assert m is not None
        config = dot_config(m, target, gemm.a.buffer.dtype)
    elif config is None:
        split = plan.split if plan.split % plan.steps else plan.split // plan.steps
        config = choose_config(m, n, k, gemm.packed, split, target, gemm.a.buffer.dtype, likely)
    if m is not None and config.rows > m:
        raise CodegenError(f"a tile of {config.rows} rows does not fit {m} rows")
    return Emission(plan, name, target, config, module or Module()).run()


class Emission:
    """One run of emit_gemm, and of what multiplies tiles as it does (grouped.py)."""

    def __init__(self, plan: Plan, name: str, target: Target, config: GemmConfig, module: Module) -> None:
        self.plan, self.name, self.config = plan, name, config
        self.gemm = plan.gemm
        self.dtype = plan.gemm.a.buffer.dtype
        self.b = Builder(module, target)
        self.flat = flattened(plan.gemm)
        self.error = self.b.name("error") if needs_checks(self.flat) else None
        self.emitter = Emitter(
            self.b,
            written=frozenset((plan.gemm.out.name,)),
            error_flag=self.error,
            dot=target.dot(self.dtype),
        )
        self.tile = Tile.of(config.rows, config.vectors, target, self.dtype)
        # B's numbers may be narrower than A's.
        self.right = replace(self.tile, source=plan.gemm.b.buffer.dtype)
        # From here on k counts what is multiplied at once.
        sizes = (plan.gemm.n.extent, plan.words)
        self.m, self.n, self.k = known_rows(plan.gemm), *(size.as_int() for size in sizes)
        # The rows of what the sums begin at, before a panel's own.
        self.before = 1 if self.tile.offset else 0
        self.panels = (plan.gemm.n.extent + (self.tile.width - 1)) // self.tile.width
        self.stack = Stack(self.b)
        self.few_rows = False  # whether this emits the path for a symbolic M smaller than the tile
        if plan.gemm.packed not in (0, self.tile.width):
            raise CodegenError(f"B is packed in {plan.gemm.packed} columns, the tile has {self.tile.width}")
        if plan.gemm.packed and plan.gemm.steps != plan.steps:
            raise CodegenError(f"B is packed in steps of {plan.gemm.steps}, the tile takes {plan.steps}")
        if plan.gemm.packed and plan.gemm.offset != self.tile.offset:
            raise CodegenError(
                f"B is packed for an offset of {plan.gemm.offset}, the tile has {self.tile.offset}"
            )

    def run(self) -> GemmCode:
        gemm, b = self.gemm, self.b
        outer = self._outer()
        axes = (*outer, gemm.m, gemm.n, gemm.k)
        used = [index for expr in definition_exprs(gemm) for index in indices(expr)]
        used += [elements_of(buffer) for buffer in self.plan.params]
        self.bases, sizes, env = load_params(
            b, self.plan.params, [*(axis.extent for axis in axes), *gemm.index, *used]
        )
        self.epilogue = Epilogue(self.flat, self.emitter, self.bases, self.name)
        self._allocate()
        self.m_size = evaluate(b, gemm.m.extent, env)
        self.k_size = evaluate(b, self.plan.words, env)
        blocks = (
            (gemm.m.extent + (self._m_block() - 1)) // self._m_block() if self._m_block() else Index.const(1)
        )
        panel_count, block_count = evaluate(b, self.panels, env), evaluate(b, blocks, env)
        with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as items:
            item = items.index
            panel = mod(b, item, panel_count)
            m_block = mod(b, div(b, item, panel_count), block_count)
            batch = decode_batch(b, outer, item, mul(b, panel_count, block_count), env)
            self._item(panel, m_block, env | batch)
        extent = self.panels * blocks
        for axis in outer:
            extent = extent * axis.extent
        return GemmCode(
            self.name,
            function(b, self.name, self.error),
            self.plan.params,
            sizes,
            extent,
            self._work(blocks),
            self.b.target.thread_work,
            self.stack.bytes,
        )

    def _outer(self) -> tuple[Axis, ...]:
        """The axes of which each point has work items of its own."""
        return self.gemm.batch

    def _work(self, blocks: Index) -> Index:
        """Operations of a work item, if the rows are evenly shared between the blocks."""
        rows = (self.gemm.m.extent + (blocks - 1)) // blocks
        return rows * (2 * self.tile.width) * self.gemm.k.extent

    def _m_block(self) -> int:
        return self.config.m_block

    # --- scratch ------------------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Stack for the error flag, for the tile or the sums of a block of rows between K blocks, for a panel."""
        tile, k_block = self.tile, self.config.k_block
        if self.error is not None:
            self.b.line(f"{self.error} = alloca i64")
            self.b.line(f"store i64 0, ptr {self.error}")
        tiles = -(-(self._m_block() or self.m or 0) // tile.rows) if k_block else 1
        self.sums = self._stack("sums", tiles * tile.rows * tile.width)
        self.panel = ""
        needs_copy = (
            self.plan.mode == "scratch"
            or (self.plan.mode == "direct" and (self.n is None or self.n % tile.width))
            or (self.plan.mode == "packed" and self.right.widens)
        )
        depth = k_block or self.k
        if needs_copy:
            assert depth is not None, "a panel in scratch has a known depth"
            self.panel = self._stack("panel", (depth + self.before) * tile.width)
        if not self.plan.in_place and self.plan.mode != "dot":
            assert depth is not None, "rows in scratch have a known length"
            self.left = LeftScratch(self._stack("left", depth * tile.rows), depth)

    def _stack(self, hint: str, elements: int) -> str:
        return self.stack.array(hint, elements, self.tile.element, self.tile.size)

    # --- one work item ------------------------------------------------------------------------------------------------

    def _item(self, panel: Int, m_block: Int, env: dict[str, Int]) -> None:
        b, tile = self.b, self.tile
        n0 = mul(b, panel, tile.width)
        env = env | {self.gemm.n.name: n0}
        first = mul(b, m_block, self._m_block())
        last = self.m_size
        if self._m_block() and self.m != self._m_block():
            last = least(b, add(b, first, self._m_block()), self.m_size)
        columns = valid_columns(self.emitter, self.gemm, tile, n0, env)
        if self.plan.mode == "dot":
            self._dots(n0, columns, env | {self.gemm.m.name: 0})
            return
        if self.m is not None:
            self._k_blocks(panel, n0, first, last, columns, env)
            return
        few = copy(self)
        few.tile, few.few_rows = replace(tile, rows=min(tile.rows, b.target.few_rows)), True
        branch(
            b,
            less(b, self.m_size, tile.rows),
            lambda: few._k_blocks(panel, n0, first, last, columns, env),
            lambda: self._k_blocks(panel, n0, first, last, columns, env),
        )

    def _k_blocks(
        self, panel: Int, n0: Int, first: Int, last: Int, columns: Int, env: dict[str, Int]
    ) -> None:
        b, k_block = self.b, self.config.k_block
        if not k_block:
            self._k_block(0, self.k_size, True, panel, n0, first, last, columns, env)
            return
        with count(b, 0, self.k_size, k_block) as k0:
            depth = least(b, k_block, sub(b, self.k_size, k0))
            if self.k is not None and self.k % k_block == 0:
                depth = k_block
            following = add(b, k0, k_block)
            is_last = less(b, sub(b, self.k_size, 1), following)
            self._k_block(k0, depth, is_last, panel, n0, first, last, columns, env)

    def _dots(self, n0: Int, columns: Int, env: dict[str, Int]) -> None:
        self._dot_sums(n0, columns, env)
        self.epilogue.from_scratch(self.tile, self.sums, env, 0, self.tile.rows, columns)

    def _dot_sums(self, n0: Int, columns: Int, env: dict[str, Int]) -> None:
        gemm, plan, tile = self.gemm, self.plan, self.tile
        operands = DotOperands(
            gemm, plan.a, plan.b, self.bases[gemm.a.buffer.name], self.bases[gemm.b.buffer.name]
        )
        dot_tile(self.b, tile, self.right, operands, self.sums, n0, columns, env)

    def _k_block(
        self,
        k0: Int,
        depth: Int,
        is_last: Value | bool,
        panel: Int,
        n0: Int,
        first: Int,
        last: Int,
        columns: Int,
        env: dict[str, Int],
    ) -> None:
        b, tile = self.b, self.tile
        b_start, b_stride = self._columns(k0, depth, panel, n0, columns, env)
        with count(b, first, last, tile.rows, runs=True) as m0:
            corner, rows, valid, whole = self._rows(m0, last)
            inner = (
                env
                | {self.gemm.m.name: corner}
                | {f"{self.gemm.m.name}.{r}": row for r, row in enumerate(rows)}
            )
            sums = self.sums
            if self.config.k_block:
                sums = place(b, self.sums, mul(b, sub(b, m0, first), tile.width), tile.dtype)
            prefetch = self._prefetch(b_start, depth, m0, first)
            if self.plan.mode == "direct" and self.config.prefetch and not self.few_rows:
                prefetch = self._prefetch_rows(k0, is_last, n0, div(b, sub(b, m0, first), tile.rows), env)
            branch(b, is_last, lambda inner=inner: self.epilogue.prefetch(tile, inner))
            accumulators = self._multiply(k0, depth, inner, b_start, b_stride, prefetch)
            accumulators = self._with_sums(accumulators, k0, sums)
            self._finish(accumulators, is_last, sums, inner, valid, whole, columns)

    def _rows(self, m0: Int, last: Int) -> tuple[Int, list[Int], tuple[Int, Int], Value | bool]:
        """The tile's corner, its row numbers where they are not corner + r, which of its rows are to be stored, and
        whether that is all of them."""
        b, tile = self.b, self.tile
        if self.few_rows:
            rows = [least(b, add(b, m0, r), sub(b, self.m_size, 1)) for r in range(tile.rows)]
            return m0, rows, (0, least(b, tile.rows, sub(b, last, m0))), False
        if self.m is not None and self.m % tile.rows == 0:
            return m0, [], (0, tile.rows), True
        end = sub(b, self.m_size, tile.rows)
        corner = least(b, m0, end)
        return corner, [], (sub(b, m0, corner), tile.rows), less(b, m0, add(b, end, 1))

    def _with_sums(self, accumulators: Accumulators, k0: Int, sums: str) -> Accumulators:
        """The accumulators plus the sums of the blocks before, if this is not the first one."""
        b, tile = self.b, self.tile
        if not self.config.k_block or k0 == 0:
            return accumulators
        return with_sums(b, tile, accumulators, k0, sums)

    def _finish(
        self,
        accumulators: Accumulators,
        is_last: Value | bool,
        sums: str,
        env: Mapping[str, Int],
        valid: tuple[Int, Int],
        whole: Value | bool,
        columns: Int,
    ) -> None:
        b, tile = self.b, self.tile

        def through_scratch() -> None:
            store_tile(b, tile, accumulators, sums)
            self.epilogue.from_scratch(tile, sums, env, valid[0], valid[1], columns)

        def store() -> None:
            # Repeating a short epilogue for each vector is cheap.
            fits: Value | bool = False
            if is_short(self.gemm.value, self.emitter.dot) and (self.n is None or columns == tile.width):
                fits = both(b, whole, less(b, tile.width - 1, columns))
            branch(b, fits, lambda: self.epilogue.from_registers(tile, accumulators, env), through_scratch)

        branch(b, is_last, store, lambda: store_tile(b, tile, accumulators, sums))

    # --- operands -----------------------------------------------------------------------------------------------------

    def _columns(
        self, k0: Int, depth: Int, panel: Int, n0: Int, columns: Int, env: dict[str, Int]
    ) -> tuple[str, Int]:
        """Where this panel's row k0 starts, and how far apart its rows are."""
        b, gemm, tile = self.b, self.gemm, self.tile
        base = self.bases[gemm.b.buffer.name]
        if self.plan.mode == "packed":
            number = add(b, mul(b, self._packed_batch(env), evaluate(b, self.panels, env)), panel)
            row = add(b, mul(b, number, add(b, self.k_size, self.before)), add(b, k0, self.before))
            if self.right.widens:
                start = place(b, base, mul(b, row, tile.width * tile.steps), self.right.source)
                widen_panel(b, self.right, start, self.panel, depth)
                return self.panel, tile.width
            return place(b, base, mul(b, row, tile.width), tile.dtype), tile.width
        source = Source(base, self.plan.b, gemm.k, gemm.n, self.right.source)
        if self.plan.mode == "scratch":
            rows = place(b, self.panel, self.before * tile.width, tile.dtype)
            pack_panel(b, self.right, source, rows, n0, k0, depth, env)
            if tile.offset:
                write_first_sums(b, tile, rows, self.panel, depth)
            return rows, tile.width
        at = evaluate(b, self.plan.b, {**env, gemm.n.name: n0, gemm.k.name: k0})
        start = place(b, base, at, tile.dtype)
        stride_index = self.plan.b.coefficient(gemm.k.name)
        assert stride_index is not None
        stride = evaluate(b, stride_index, env)
        if not self.panel:
            return start, stride
        whole = less(b, tile.width - 1, columns)
        if whole is True:
            return start, stride

        def copy() -> None:
            pack_panel(b, self.right, source, self.panel, n0, k0, depth, env)

        if whole is False:
            copy()
            return self.panel, tile.width
        cut = b.not_(whole)
        branch(b, cut, copy)
        chosen = b.emit(f"select i1 {whole.text}, ptr {start}, ptr {self.panel}", "i64", 1).text
        return chosen, b.select(whole, value_of(b, stride), value_of(b, tile.width))

    def _packed_batch(self, env: Mapping[str, Int]) -> Int:
        """The number of the packed matrix: those batch axes that B depends on, row-major."""
        number: Int = 0
        for axis in packed_batch(self.gemm):
            number = add(self.b, mul(self.b, number, evaluate(self.b, axis.extent, env)), env[axis.name])
        return number

    def _multiply(
        self,
        k0: Int,
        depth: Int,
        env: Mapping[str, Int],
        b_start: str,
        b_stride: Int,
        prefetch: Prefetch | LinePrefetch | None,
    ) -> Accumulators:
        b, tile, k = self.b, self.tile, self.gemm.k.name
        unroll, init, steps = self.config.unroll, self._first_sums(k0, b_start), self.plan.steps
        if not self.plan.in_place:
            matrix = self.bases[self.gemm.a.buffer.name]
            last_row = sub(b, self.m_size, 1) if self.few_rows else None
            copy_left(b, tile, self.plan, matrix, self.left, k0, depth, env, last_row)
            rows = [RowAddress(self.left.pointer, r * self.left.stride) for r in range(tile.rows)]
            operands = Operands(rows, tile.dtype, 1, b_start, b_stride, prefetch)
            return accumulate(b, tile, operands, depth, init, unroll)
        if not self.plan.split:
            rows = self._row_addresses(self.plan.a, {**env, k: mul(b, k0, steps)})
            stride = mul(b, evaluate(b, self._stride(self.plan.a, k), env), steps)
            operands = Operands(rows, tile.source, stride, b_start, b_stride, prefetch)
            return accumulate(b, tile, operands, depth, init, unroll)
        split = self.plan.split // steps
        offset = split_offset(self.gemm, self.plan.a, self.plan.split)
        stride = mul(b, evaluate(b, self._stride(offset, f"{k}.inner"), env), steps)
        flat_init = [value for row in init for value in row]
        start = div(b, k0, split)
        with b.loop(value_of(b, 0), value_of(b, div(b, depth, split)), 1, flat_init, runs=True) as scope:
            outer: Int = add(b, start, scope.index)
            rows = self._row_addresses(offset, {**env, f"{k}.outer": outer, f"{k}.inner": 0})
            here = place(b, b_start, mul(b, mul(b, scope.index, split), b_stride), tile.dtype)
            carried = [scope.carried[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]
            later = None
            if prefetch is not None:
                shift = mul(b, mul(b, scope.index, split), prefetch.stride)
                later = replace(prefetch, base=place(b, prefetch.base, shift, tile.dtype))
            operands = Operands(rows, tile.source, stride, here, b_stride, later)
            sums = accumulate(b, tile, operands, split, carried, unroll)
            scope.next = [value for row in sums for value in row]
        return [scope.results[r * tile.vectors : (r + 1) * tile.vectors] for r in range(tile.rows)]

    def _first_sums(self, k0: Int, b_start: str) -> Accumulators:
        """What the sums begin at: panels of scratch hold what that is for their own block of k, others for all of k."""
        b, tile = self.b, self.tile
        if not tile.offset or (self.plan.mode == "packed" and isinstance(k0, int) and k0 > 0):
            return zeros(tile)
        if self.plan.mode != "packed" or k0 == 0:
            return first_sums(b, tile, place(b, b_start, -tile.width, tile.dtype))
        start = place(b, b_start, mul(b, sub(b, -1, k0), tile.width), tile.dtype)
        is_first = b.cmp("eq", value_of(b, k0), 0)
        zero = Value("zeroinitializer", tile.dtype, tile.lanes)
        return [[b.select(is_first, value, zero) for value in row] for row in first_sums(b, tile, start)]

    def _stride(self, offset: Index, name: str) -> Index:
        stride = offset.coefficient(name)
        assert stride is not None
        return stride

    def _row_addresses(self, offset: Index, env: Mapping[str, Int]) -> list[RowAddress]:
        m = self.gemm.m.name
        if self.few_rows:
            numbers = [Index.var(f"{m}.{r}") for r in range(self.tile.rows)]
        else:
            numbers = [Index.var(m) + r for r in range(self.tile.rows)]
        return row_addresses(
            self.b, offset, self.bases[self.gemm.a.buffer.name], self.tile.source, m, numbers, env
        )

    def _prefetch_rows(
        self, k0: Int, is_last: Value | bool, n0: Int, number: Int, env: Mapping[str, Int]
    ) -> LinePrefetch:
        """Of the rows of B that follow, the next block's or the next panel's, each tile fetches another line."""
        b, gemm, tile = self.b, self.gemm, self.tile
        per_line = b.target.cache_line // tile.size
        lines = -(-tile.width // per_line)
        column, k = add(b, n0, tile.width), 0
        if not isinstance(is_last, bool):
            column = b.select(is_last, value_of(b, column), value_of(b, n0))
            k = b.select(is_last, 0, value_of(b, add(b, k0, self.config.k_block)))
        at = evaluate(b, self.plan.b, {**env, gemm.n.name: column, gemm.k.name: k})
        at = add(b, at, mul(b, mod(b, number, lines), per_line))
        stride = evaluate(b, self._stride(self.plan.b, gemm.k.name), env)
        return LinePrefetch(place(b, self.bases[gemm.b.buffer.name], at, tile.dtype), stride)

    def _prefetch(self, b_start: str, depth: Int, m0: Int, first: Int) -> Prefetch | None:
        """The tiles of a block of rows share the work of fetching the next panel, which lies behind this one."""
        tile = self.tile
        if not self.config.prefetch or self.plan.mode != "packed" or self.right.widens or self.few_rows:
            return None
        b = self.b
        if self.m is None:
            # A number of lines for each step that is known: of the stride, what exceeds it is not prefetched.
            tiles = ceil_div(b, least(b, self._m_block() or self.m_size, self.m_size), tile.rows)
            most = self.config.lines * b.target.cache_line // tile.size
            stride = least(b, div(b, sub(b, add(b, tile.width, tiles), 1), tiles), most)
        else:
            tiles = -(-(self._m_block() or self.m) // tile.rows)
            stride = -(-tile.width // tiles)
        tile_number = div(b, sub(b, m0, first), tile.rows)
        ahead = add(b, mul(b, depth, tile.width), mul(b, tile_number, mul(b, depth, stride)))
        return Prefetch(place(b, b_start, ahead, tile.dtype), stride, self.config.lines)
