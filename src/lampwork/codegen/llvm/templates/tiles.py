"""Products of tiles: a `Gemm` becomes a kernel for a unit with tile registers (`Target.units`).

    configure
    for item in [begin, end):                      one batch element, some rows, some panels of columns
        copy the rows of A into scratch            (only where they cannot be read as they lie: tiles_left.py)
        for each panel of the item:
            for k0 in 0, block, ...                (one turn where nothing is read twice)
                rearrange B's panel into scratch   (only if it is not packed)
                for m0 in rows of the item:        two tiles of rows, one for what is left of 16 or less
                    for k: load A, A', B, B' and multiply each with each: four loads for four products
                    put the sums aside; behind the last block: epilogue (epilogue.py)
    release

Of the eight registers four hold sums, two tiles of A, two of B. Tiles of A and of sums all have min(16, M) rows: where
fewer are left the last tile overlaps the one before it, and rows computed twice are stored once. Copied rows are filled
up with repetitions of the last one instead. What k lacks to a whole tile is zero in A and in B, so that neither nan nor
inf comes of it. Sums pass through a buffer in the first-level cache, as there is no other way out of a tile.

Where the number of rows is open, fewer than `Target.unit_rows` are the vectors' (gemm.py): the panels are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit import Emitter
from lampwork.codegen.llvm.templates.choose import UNKNOWN, Likely
from lampwork.codegen.llvm.templates.code import GemmCode, Stack, decode_batch, function, load_params
from lampwork.codegen.llvm.templates.conv_plan import ConvPlan
from lampwork.codegen.llvm.templates.epilogue import Epilogue, flattened, needs_checks, valid_columns
from lampwork.codegen.llvm.templates.gemm import emit_gemm
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
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
)
from lampwork.codegen.llvm.templates.microkernel import Tile, load_vector, store_vector
from lampwork.codegen.llvm.templates.pack import Source, pack_panel
from lampwork.codegen.llvm.templates.plan import Plan, packed_batch, plan_gemm
from lampwork.codegen.llvm.templates.tiles_left import CopiedRows, gather_taps, make_room
from lampwork.codegen.llvm.templates.tiles_plan import (
    COLUMNS,
    ROWS,
    TILE_ROWS,
    WORDS,
    TileConfig,
    tile_config,
    tile_unit,
)
from lampwork.codegen.target import Target, TileUnit
from lampwork.errors import CodegenError
from lampwork.loops.ir.bounds import elements_of
from lampwork.loops.ir.expr import definition_exprs, indices
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Gemm

_WORD = 4
_LEFT, _RIGHT = (4, 5), (6, 7)
"""The registers of A and of B; those before are of sums, two of them a tile of rows."""


def emit_tiles(gemm: Gemm, name: str, target: Target, likely: Likely = UNKNOWN) -> GemmCode:
    """The kernel of a `Gemm` without digits.

    Raises CodegenError for what `tile_unit` refuses.
    """
    unit = tile_unit(gemm, target)
    if unit is None or gemm.rows:
        raise CodegenError(f"no tiles for the gemm {gemm.out.name!r} of {gemm.a.buffer.dtype}")
    config, plan = tile_config(gemm, unit, target, likely), plan_gemm(gemm, target, likely)
    return _Emission(gemm, plan, name, target, unit, config).run()


def emit_conv_tiles(
    plan: ConvPlan, name: str, target: Target, unit: TileUnit, config: TileConfig, *, proven: bool = False
) -> GemmCode:
    """The kernel of a convolution. `proven`: no access needs a check, though the numbers of `plan` are symbols."""
    return _Emission(plan.gemm, plan, name, target, unit, config, proven=proven).run()


class _Emission:
    """One run of emit_tiles."""

    def __init__(
        self,
        gemm: Gemm,
        plan: Plan | ConvPlan,
        name: str,
        target: Target,
        unit: TileUnit,
        config: TileConfig,
        *,
        proven: bool = False,
    ) -> None:
        self.original, self.plan, self.params, self.name = gemm, plan, plan.params, name
        self.gemm = gemm = flattened(gemm)
        self.unit, self.config = unit, config
        self.dtype = gemm.a.buffer.dtype
        self.b = Builder(Module(), target)
        self.tiles = unit.code(self.b)
        checked = not proven and needs_checks(gemm)
        self.error = self.b.name("error") if checked or config.few is not None else None
        self.emitter = Emitter(
            self.b,
            written=frozenset((gemm.out.name,)),
            error_flag=self.error,
            proven=proven,
            dot=target.dot(self.dtype),
        )
        width = gemm.packed or 2 * COLUMNS
        self.tile = Tile.of(TILE_ROWS, width // target.sum_lanes(self.dtype), target, self.dtype)
        self.panels = (gemm.n.extent + (width - 1)) // width
        self.before = 1 if gemm.packed and gemm.offset else 0
        self.stack = Stack(self.b)

    def run(self) -> GemmCode:
        gemm, b, config = self.gemm, self.b, self.config
        axes = (*gemm.batch, gemm.m, gemm.n, gemm.k, *gemm.rows, *gemm.depth)
        used = [index for expr in definition_exprs(gemm) for index in indices(expr)]
        used += [elements_of(buffer) for buffer in self.params]
        used.append(self.plan.a)
        if isinstance(self.plan, ConvPlan):
            used += [each for found in self.plan.places for each in (found.index, found.last)]
        self.bases, sizes, env = load_params(
            b, self.params, [*(axis.extent for axis in axes), *gemm.index, *used]
        )
        self.epilogue = Epilogue(gemm, self.emitter, self.bases, self.name)
        self.m_size = evaluate(b, gemm.m.extent, env)
        self.k_size = evaluate(b, gemm.k.extent, env)
        self.words = ceil_div(b, self.k_size, self.unit.steps)
        self._allocate()
        blocks = (gemm.m.extent + (config.rows - 1)) // config.rows
        chunks = (self.panels + (config.panels - 1)) // config.panels
        panel_count, chunk_count = evaluate(b, self.panels, env), evaluate(b, chunks, env)
        block_count = evaluate(b, blocks, env)

        def items(body: Callable[[Int, Int, Int, Int, dict[str, Int]], None]) -> None:
            with b.loop(Value("%begin", "i64"), Value("%end", "i64"), 1) as scope:
                item = scope.index
                first = mul(b, mod(b, item, chunk_count), config.panels)
                last = least(b, add(b, first, config.panels), panel_count)
                m_block = mod(b, div(b, item, chunk_count), block_count)
                inner = mul(b, chunk_count, block_count)
                batch = decode_batch(b, gemm.batch, item, inner, env)
                body(first, last, m_block, div(b, item, inner), env | batch)

        def multiply() -> None:
            self._configure()
            items(lambda first, last, m_block, _, inside: self._item(first, last, m_block, inside))
            self.tiles.release()

        if config.few is None:
            multiply()
        else:
            few = emit_gemm(self.original, f"{self.name}.few", b.target, config.few, module=b.module)
            if (few.params, few.sizes) != (self.params, sizes):
                raise CodegenError(f"the two forms of {self.name} are called in different ways")

            self.stack.bytes += few.scratch

            def vectors() -> None:
                items(
                    lambda first, last, _, element, inside: self._call_few(
                        few.name, add(b, mul(b, element, panel_count), first), sub(b, last, first)
                    )
                )

            branch(b, less(b, self.m_size, b.target.unit_rows), vectors, multiply)
        extent = chunks * blocks
        for axis in gemm.batch:
            extent = extent * axis.extent
        return GemmCode(
            self.name,
            function(b, self.name, self.error),
            self.params,
            sizes,
            extent,
            self._work(blocks, chunks),
            b.target.thread_work,
            self.stack.bytes,
        )

    def _work(self, blocks: Index, chunks: Index) -> Index:
        """Operations of a work item, if rows and panels are evenly shared."""
        rows = (self.gemm.m.extent + (blocks - 1)) // blocks
        panels = (self.panels + (chunks - 1)) // chunks
        return rows * panels * (2 * self.tile.width) * self.gemm.k.extent

    def _call_few(self, name: str, begin: Int, number: Int) -> None:
        b, end = self.b, text_of(add(self.b, begin, number))
        arguments = f"ptr %buffers, ptr %sizes, i64 {text_of(begin)}, i64 {end}"
        status = b.emit(f"call i64 @{name}({arguments})", "i64", 1, pure=False)
        old = b.emit(f"load i64, ptr {self.error}", "i64", 1, pure=False)
        b.line(f"store i64 {b.or_(old, status).text}, ptr {self.error}")

    # --- registers and scratch ----------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        b, tile, config = self.b, self.tile, self.config
        if self.error is not None:
            b.line(f"{self.error} = alloca i64")
            b.line(f"store i64 0, ptr {self.error}")
        rows = config.rows if config.block else TILE_ROWS
        self.sums = self.stack.array("sums", rows * tile.width, tile.element, _WORD)
        self.padded: Int = self.words if config.whole else mul(b, ceil_div(b, self.words, WORDS), WORDS)
        self.last_tile = self.panel = ""
        if not self.gemm.packed:
            depth = config.block or self.padded
            assert isinstance(depth, int), "a panel in scratch has a known depth"
            self.panel = self.stack.array("panel", depth * tile.width, tile.element, _WORD)
        elif not config.whole:
            self.last_tile = self.stack.array("last", WORDS * tile.width, tile.element, _WORD)
        self.copied: CopiedRows | None = None
        if config.left != "in place":
            self.copied = make_room(b, self.stack, config.rows, self.padded, b.target.unit_bytes)

    def _configure(self) -> None:
        """As many rows of A and of sums as there are, or 16; whole tiles of B."""
        self.rows: Int = ROWS
        if self.config.left == "in place":
            self.rows = greatest(self.b, 1, least(self.b, ROWS, self.m_size))
        line = WORDS * _WORD
        self.tiles.configure([(self.rows, line)] * 6 + [(WORDS, line)] * 2)

    # --- one work item ------------------------------------------------------------------------------------------------

    def _item(self, first_panel: Int, last_panel: Int, m_block: Int, env: dict[str, Int]) -> None:
        b, config = self.b, self.config
        first = mul(b, m_block, config.rows)
        last = least(b, add(b, first, config.rows), self.m_size)
        if self.copied is not None:
            self._copy(self.copied, first, last, env)
        if config.panels == 1:
            self._panel(first_panel, first, last, env)
            return
        with count(b, first_panel, last_panel, runs=True) as panel:
            self._panel(panel, first, last, env)

    def _copy(self, copied: CopiedRows, first: Int, last: Int, env: dict[str, Int]) -> None:
        if isinstance(self.plan, ConvPlan):
            base = self.bases[self.gemm.a.buffer.name]
            gather_taps(self.b, self.tile, self.plan, base, copied, first, last, env)
            return
        matrix = self.bases[self.gemm.a.buffer.name]
        copied.copy(self.b, self.tile, self.plan, matrix, first, last, env)

    def _panel(self, panel: Int, first: Int, last: Int, env: dict[str, Int]) -> None:
        b, gemm, config = self.b, self.gemm, self.config
        n0 = mul(b, panel, self.tile.width)
        env = env | {gemm.n.name: n0}
        columns = valid_columns(self.emitter, gemm, self.tile, n0, env)
        packed = self._packed_panel(panel, env) if gemm.packed else ""
        if self.last_tile:
            self._copy_last_tile(packed)
        if not config.block:
            self._block(0, self.padded, packed, first, last, columns, env)
            return
        passes = greatest(b, 1, div(b, add(b, self.padded, config.block // 2), config.block))
        tiles = ceil_div(b, self.padded, WORDS)
        block = least(b, mul(b, div(b, sub(b, add(b, tiles, passes), 1), passes), WORDS), self._most())
        if isinstance(block, int):
            with count(b, 0, self.padded, block) as k0:
                depth = block
                if not (isinstance(self.padded, int) and self.padded % block == 0):
                    depth = least(b, block, sub(b, self.padded, k0))
                self._block(k0, depth, packed, first, last, columns, env)
            return
        turns = div(b, sub(b, add(b, self.padded, block), 1), block)
        with count(b, 0, turns, runs=True) as number:
            k0 = mul(b, number, block)
            self._block(k0, least(b, block, sub(b, self.padded, k0)), packed, first, last, columns, env)

    def _most(self) -> int:
        """The words of one pass: a panel in scratch has room for so many."""
        return self.config.block if self.panel else 2 * self.config.block

    def _packed_panel(self, panel: Int, env: Mapping[str, Int]) -> str:
        """Where the words of a packed panel start."""
        b, gemm = self.b, self.gemm
        number: Int = 0
        for axis in packed_batch(gemm):
            number = add(b, mul(b, number, evaluate(b, axis.extent, env)), env[axis.name])
        number = add(b, mul(b, number, evaluate(b, self.panels, env)), panel)
        row = add(b, mul(b, number, add(b, self.words, self.before)), self.before)
        return place(b, self.bases[gemm.b.buffer.name], mul(b, row, self.tile.width), self.tile.dtype)

    def _copy_last_tile(self, packed: str) -> None:
        """What is left of a panel behind its whole tiles, and zeros."""
        b, tile = self.b, self.tile
        whole = mul(b, div(b, self.words, WORDS), WORDS)
        left = mul(b, sub(b, self.words, whole), tile.width)
        start = place(b, packed, mul(b, whole, tile.width), tile.dtype)
        with count(b, 0, WORDS * tile.width, COLUMNS) as at:
            to = place(b, self.last_tile, at, tile.dtype)

            def copy(at: Int = at, to: str = to) -> None:
                store_vector(b, load_vector(b, tile.dtype, COLUMNS, place(b, start, at, tile.dtype)), to)

            def clear(to: str = to) -> None:
                store_vector(b, Value("zeroinitializer", tile.dtype, COLUMNS), to)

            branch(b, less(b, at, left), copy, clear)

    # --- one block of k -----------------------------------------------------------------------------------------------

    def _block(
        self, k0: Int, depth: Int, packed: str, first: Int, last: Int, columns: Int, env: dict[str, Int]
    ) -> None:
        """All rows of an item times `depth` words of a panel, from word k0 on."""
        b = self.b
        panel = place(b, packed, mul(b, k0, self.tile.width), self.tile.dtype) if packed else self.panel
        if not packed:
            self._pack(k0, depth, env)
        is_last = less(b, sub(b, self.padded, 1), add(b, k0, depth))
        pairs = div(b, add(b, sub(b, last, first), ROWS - 1), TILE_ROWS)
        behind = add(b, first, mul(b, pairs, TILE_ROWS))

        def tiles(m0: Int, number: int) -> None:
            corner, apart, valid = self._rows(m0, number, last)
            inside = env | {self.gemm.m.name: corner}
            sums = self.sums
            if self.config.block:
                at = mul(b, sub(b, m0, first), self.tile.width)
                sums = place(b, self.sums, at, self.tile.dtype)
            for group in range(0, self.tile.vectors, 2):
                wide = min(2, self.tile.vectors - group)
                self._multiply(k0, depth, panel, first, corner, apart, number, group, wide, sums, inside, m0)

            def finish() -> None:
                self.epilogue.from_scratch(self.tile, sums, inside, valid[0], valid[1], columns)

            branch(b, is_last, finish)

        if pairs != 0:
            with count(b, first, behind, TILE_ROWS) as m0:
                tiles(m0, 2)
        branch(b, less(b, behind, last), lambda: tiles(behind, 1))

    def _pack(self, k0: Int, depth: Int, env: Mapping[str, Int]) -> None:
        """B's words from k0 on in scratch, and zeros behind them."""
        b, gemm, tile, plan = self.b, self.gemm, self.tile, self.plan
        assert isinstance(plan, Plan), "the B of a convolution is packed"
        source = Source(self.bases[gemm.b.buffer.name], plan.b, gemm.k, gemm.n, tile.source)
        there = least(b, depth, sub(b, self.words, k0))
        pack_panel(b, tile, source, self.panel, env[gemm.n.name], k0, there, env)
        with count(b, mul(b, there, tile.width), mul(b, depth, tile.width), COLUMNS) as at:
            zero = Value("zeroinitializer", tile.dtype, COLUMNS)
            store_vector(b, zero, place(b, self.panel, at, tile.dtype))

    def _rows(self, m0: Int, number: int, last: Int) -> tuple[Int, Int, tuple[Int, Int]]:
        """For `number` tiles of rows at m0: the first row, how far apart the tiles are, which rows are to be stored."""
        b = self.b
        if self.config.left != "in place":
            return m0, ROWS, (0, least(b, number * ROWS, sub(b, last, m0)))
        # Both tiles lie before the end of A, one upon the other where there are too few rows.
        apart: Int = least(b, ROWS, sub(b, self.m_size, self.rows)) if number == 2 else 0
        height = add(b, self.rows, apart)
        corner = least(b, m0, sub(b, self.m_size, height))
        return corner, apart, (sub(b, m0, corner), least(b, height, sub(b, last, corner)))

    def _multiply(
        self,
        k0: Int,
        depth: Int,
        panel: str,
        first: Int,
        corner: Int,
        apart: Int,
        rows: int,
        group: int,
        wide: int,
        sums: str,
        env: Mapping[str, Int],
        m0: Int,
    ) -> None:
        """`rows` tiles of rows times `wide` tiles of columns, added to what waits at `sums` unless k0 is 0."""
        b, tile, tiles = self.b, self.tile, self.tiles
        line = tile.width * _WORD
        corners = [
            (
                2 * r + c,
                place(b, sums, add(b, mul(b, apart, r * tile.width), (group + c) * COLUMNS), tile.dtype),
            )
            for r in range(rows)
            for c in range(wide)
        ]

        def start() -> None:
            for number, _ in corners:
                tiles.zero(number)

        def resume() -> None:
            for number, pointer in corners:
                tiles.load(number, pointer, line)

        branch(b, k0 == 0 if isinstance(k0, int) else b.cmp("eq", k0, 0), start, resume)
        left, stride = self._left(corner, first, env)
        with count(b, 0, depth, WORDS, runs=True) as step:
            word = add(b, k0, step)
            here = place(b, panel, mul(b, step, tile.width), tile.dtype)
            if self.last_tile:
                whole = less(b, add(b, word, WORDS - 1), self.words)
                if whole is False:
                    here = self.last_tile
                elif whole is not True:
                    chosen = f"select i1 {whole.text}, ptr {here}, ptr {self.last_tile}"
                    here = b.emit(chosen, "i64", 1, pure=False).text
            self._prefetch(here, first, m0)
            for c in range(wide):
                tiles.load(_RIGHT[c], place(b, here, (group + c) * COLUMNS, tile.dtype), line)
            for r in range(rows):
                tiles.load(_LEFT[r], left(word, mul(b, apart, r)), stride)
                for c in range(wide):
                    tiles.dot(2 * r + c, _LEFT[r], _RIGHT[c])
        for number, pointer in corners:
            tiles.store(number, pointer, line)

    def _left(self, corner: Int, first: Int, env: Mapping[str, Int]) -> tuple[Callable[[Int, Int], str], Int]:
        """Where the tile of A at a word of k and so many rows below the corner lies; bytes between its rows."""
        b, gemm = self.b, self.gemm
        if self.copied is not None:
            copied = self.copied
            return lambda word, below: copied.at(b, add(b, sub(b, corner, first), below), word), copied.stride
        base, size = self.bases[gemm.a.buffer.name], self.tile.source
        row, k = (gemm.rows[0].name, gemm.depth[0].name) if gemm.rows else (gemm.m.name, gemm.k.name)
        factor = self.plan.a.coefficient(row)
        assert factor is not None, "rows that are read as they lie are equally far apart"
        apart = evaluate(b, factor, env)
        start = evaluate(b, self.plan.a, {**env, row: corner, k: 0})
        split = self.plan.split if isinstance(self.plan, Plan) else 0

        def at(word: Int, below: Int) -> str:
            number = mul(b, word, self.unit.steps)
            offset = add(b, start, number)
            if split:
                offset = evaluate(b, self.plan.a, {**env, row: corner, k: number})
            return place(b, base, add(b, offset, mul(b, below, apart)), size)

        return at, mul(b, apart, _WORD // self.unit.steps)

    def _prefetch(self, here: str, first: Int, m0: Int) -> None:
        """This tile of rows' share of the lines of the next panel."""
        b, tile, ahead = self.b, self.tile, self.config.ahead
        if not ahead or not self.gemm.packed:
            return
        b.module.declare("llvm.prefetch", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        per_line = b.target.cache_line // _WORD
        share = mul(b, div(b, sub(b, m0, first), TILE_ROWS), ahead * per_line)
        next_panel = mul(b, add(b, self.words, self.before), tile.width)
        start = place(b, here, add(b, next_panel, share), tile.dtype)
        for number in range(ahead):
            pointer = place(b, start, number * per_line, tile.dtype)
            b.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")
