"""A matrix product on tensor cores as LLVM IR: `emit_product`.

    a block of threads, for a tile of m x n results:
        start copies of the first turns of k to shared memory
        for each turn of k:
            wait for its copies; start those of the turn stages - 1 ahead, where the one before this was
            for each step: operands to registers (ldmatrix), 16 x 8 results at a time (mma.sync)
        sums through shared memory, so that a thread has neighbours of a row
        out[...] = value, several neighbours at a time

Blocks that run together are of neighbouring tiles, which read the same lines: they count through GROUP tiles along m
before the next one along n. Operands whose lines do not start at multiples of 4 bytes, and those in buffers that are
not aligned, are copied element by element, by code of its own, which is slow and right.
"""

from __future__ import annotations

from collections.abc import Sequence

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.mma.frame import ProductWriter
from lampwork.codegen.gpu.mma.instructions import (
    barrier,
    commit,
    multiply,
    shared_pointer,
    shared_start,
    special,
    wait_for_all_but,
    warp_barrier,
)
from lampwork.codegen.gpu.mma.operands import (
    Copies,
    Fragments,
    Operand,
    Room,
    copy_elements,
    is_multiple,
    operands_of,
)
from lampwork.codegen.gpu.mma.tiles import CHUNK, SMALL, STEP, WARP, Tile
from lampwork.codegen.gpu.products import ProductCode
from lampwork.codegen.llvm.builder import Value
from lampwork.codegen.llvm.templates.ints import (
    Int,
    add,
    branch,
    ceil_div,
    count,
    div,
    evaluate,
    less,
    mod,
    mul,
    sub,
    value_of,
)
from lampwork.codegen.llvm.types import itemsize
from lampwork.errors import CodegenError
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Gemm

GROUP = 8  # tiles along m that are next to each other in the order of blocks
_Taken = tuple[list[list[Value]], list[list[Value]]]
NARROWEST = 8  # neighbours that a thread computes results of, of half types; half as many of wider ones


def blocks_of(gemm: Gemm, tile: Tile) -> Index:
    """How many tiles a product has."""
    extent = (gemm.m.extent + (tile.m - 1)) // tile.m * ((gemm.n.extent + (tile.n - 1)) // tile.n)
    for axis in gemm.batch:
        extent = extent * axis.extent
    return extent


def can_copy(operands: tuple[Operand, Operand], tile: Tile) -> bool:
    """Whether a block has a thread for each copy of a line."""
    pairs = zip(operands, (tile.m, tile.n), strict=True)
    return all(
        Room.of(operand, places, tile).line <= tile.threads * (operand.width or CHUNK)
        for operand, places in pairs
    )


def emit_product(gemm: Gemm, target: GpuTarget, tile: Tile, name: str) -> ProductCode:
    """The kernel of a product by tiles.

    Raises:
        CodegenError: its operands do not lie in lines, or the tile does not fit the card.
    """
    operands = operands_of(gemm)
    dtype = gemm.a.buffer.dtype
    if operands is None or not tile.is_possible(dtype, target) or not can_copy(operands, tile):
        raise CodegenError(f"no tile {tile.name} for the product {gemm.out.name!r} of {dtype}")
    return Tiled(gemm, operands, target, tile).write(name, blocks_of(gemm, tile))


class Tiled(ProductWriter):
    """One kernel being written."""

    def __init__(self, gemm: Gemm, operands: tuple[Operand, Operand], target: GpuTarget, tile: Tile) -> None:
        super().__init__(gemm, operands, target, tile.threads, tile.shared_bytes(gemm.a.buffer.dtype))
        self.tile = tile
        self.rooms = Room.of(self.left, tile.m, tile), Room.of(self.right, tile.n, tile)

    def prepare(self) -> None:
        self._place()
        self._threads()

    # --- who does what ------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """The tile of this block: its first row and column, and its place in the batch."""
        b, gemm, tile, env = self.b, self.gemm, self.tile, self.env
        rows = ceil_div(b, evaluate(b, gemm.m.extent, env), tile.m)
        columns = ceil_div(b, evaluate(b, gemm.n.extent, env), tile.n)
        block = self.block_of_batch(mul(b, rows, columns))
        group, inside = self.divided(block, mul(b, columns, GROUP))
        first = mul(b, group, GROUP)
        after = sub(b, rows, first)
        high = b.intrinsic("smin", value_of(b, after), b.const(GROUP, "i64"))
        column, row = self.divided(inside, high)
        self.m0 = mul(b, add(b, first, row), tile.m)
        self.n0 = mul(b, column, tile.n)

    def _threads(self) -> None:
        """What part of the tile is this warp's."""
        b, tile = self.b, self.tile
        self.thread = special(b, "tid.x")
        self.lane, warp = b.and_(self.thread, WARP - 1), b.lshr(self.thread, 5)
        self.warp = warp
        row = b.and_(warp, tile.rows - 1)
        rest = b.lshr(warp, tile.rows.bit_length() - 1)
        column = b.and_(rest, tile.columns - 1)
        self.slice = b.lshr(rest, tile.columns.bit_length() - 1)
        self.warp_m, self.warp_n = b.mul(row, tile.warp_m), b.mul(column, tile.warp_n)
        self.shared = shared_start(b)

    # --- a tile -------------------------------------------------------------------------------------------------------

    def body(self, wide: bool) -> None:
        b, tile, dtype = self.b, self.tile, self.dtype
        self.fragments = (
            Fragments(b, self.left, self.rooms[0], tile, self.lane, self.warp_m, self.slice, left=True),
            Fragments(b, self.right, self.rooms[1], tile, self.lane, self.warp_n, self.slice, left=False),
        )
        zero = b.const(0.0, "f32")
        sums = [zero] * tile.sums
        sums = self._copied_together(sums) if wide else self._copied_by_elements(sums)
        self._epilogue(sums, tile.phases(dtype))

    def _copies(self) -> list[Copies]:
        """What brings A and B to shared memory."""
        pairs = zip((self.left, self.right), self.rooms, (self.m0, self.n0), strict=True)
        return [
            Copies(
                self.b,
                operand,
                room,
                self.tile,
                self.thread,
                self.bases[operand.buffer.name],
                first,
                self.env,
            )
            for operand, room, first in pairs
        ]

    def _issue(self, copies: list[Copies], places: list[Value], room: Value, k: Value) -> list[Value]:
        """Start the copies of the tiles at k, from places on, to an address; gives the places of the next ones."""
        rooms = room, self.b.add(room, self.rooms[0].bytes)
        return [copy.issue(place, at, k) for copy, place, at in zip(copies, places, rooms, strict=True)]

    def _first_issued(self, copies: list[Copies], stages: int) -> list[Value]:
        """Start the copies of the first stages, a group each; gives the places of the next ones."""
        b, size = self.b, self.tile.stage_bytes(self.dtype)
        places = [copy.address for copy in copies]
        for stage in range(stages):
            room = b.add(self.shared, stage * size) if stage else self.shared
            places = self._issue(copies, places, room, b.const(stage * self.tile.k, "i64"))
            commit(b)
        return places

    def _next_rooms(self, rooms: Sequence[Value], last: Value) -> list[Value]:
        """The stages behind these, the first one behind the last."""
        b, size = self.b, self.tile.stage_bytes(self.dtype)
        return [b.select(b.cmp("eq", room, last), self.shared, b.add(room, size)) for room in rooms]

    def _copied_together(self, sums: list[Value]) -> list[Value]:
        b, tile = self.b, self.tile
        size, lines = tile.stage_bytes(self.dtype), tile.stages - 1
        copies = self._copies()
        places = self._first_issued(copies, lines)
        last = b.add(self.shared, lines * size)
        carried = [*sums, *places, self.shared, last]
        with b.loop(b.const(0, "i64"), self._depth(), tile.k, carried, runs=True) as loop:
            *sums, first, second, read, write = loop.carried
            wait_for_all_but(b, tile.stages - 2)
            barrier(b)
            # The first operands are on their way to registers while copies are started.
            taken = self._loaded(read, 0)
            places = self._issue(copies, [first, second], write, b.add(loop.index, lines * tile.k))
            commit(b)
            sums = self._multiplied(sums, read, taken)
            loop.next = [*sums, *places, *self._next_rooms((read, write), last)]
        # Copies of zeros may still be on their way.
        wait_for_all_but(b, 0)
        barrier(b)
        return loop.results[: tile.sums]

    def _copied_by_elements(self, sums: list[Value]) -> list[Value]:
        b, tile = self.b, self.tile
        rooms = self.shared, b.add(self.shared, self.rooms[0].bytes)
        with b.loop(b.const(0, "i64"), self._depth(), tile.k, sums, runs=True) as loop:
            self._copy_elements(rooms, loop.index)
            barrier(b)
            loop.next = self._multiplied(loop.carried, self.shared, self._loaded(self.shared, 0))
            barrier(b)
        return loop.results

    def _copy_elements(self, rooms: tuple[Value, Value], k: Value) -> None:
        """The tiles at k to two places in shared memory, element by element."""
        for operand, room, first, to in zip(
            (self.left, self.right), self.rooms, (self.m0, self.n0), rooms, strict=True
        ):
            base = self.bases[operand.buffer.name]
            copy_elements(self.b, operand, room, self.tile, self.thread, base, first, k, to, self.env)

    def _depth(self) -> Value:
        return value_of(self.b, evaluate(self.b, self.gemm.k.extent, self.env))

    def _loaded(self, room: Value, step: int) -> _Taken:
        """What a step along k multiplies, of the tiles at an address."""
        second = self.b.add(room, self.rooms[0].bytes)
        return self.fragments[0].load(room, step), self.fragments[1].load(second, step)

    def _multiplied(self, sums: list[Value], room: Value, taken: _Taken) -> list[Value]:
        """The sums with those of one turn of k added. taken: what its first step multiplies."""
        b, tile, sums = self.b, self.tile, list(sums)
        columns, rows = range(tile.warp_n // 8), range(tile.warp_m // SMALL)
        for step in range(tile.k * itemsize(self.dtype) // STEP // tile.slices):
            left, right = self._loaded(room, step) if step else taken
            for row in rows:
                # To and fro: what was read last is used first.
                for column in reversed(columns) if row % 2 else columns:
                    at = (row * len(columns) + column) * 4
                    words = right[column // 2][column % 2 * 2 :][:2]
                    sums[at : at + 4] = multiply(b, self.dtype, left[row], words, sums[at : at + 4])
        return sums

    # --- results ------------------------------------------------------------------------------------------------------

    def _epilogue(self, sums: list[Value], phases: int) -> None:
        """The sums of a warp through shared memory to rows of neighbours, and `value` of these."""
        b, tile = self.b, self.tile
        parts = tile.warp_m // SMALL // phases  # of 16 rows
        width = tile.staged_width
        warps = tile.rows * tile.columns
        own = b.mul(self.warp, parts * SMALL * width * 4)
        row, column = b.lshr(self.lane, 2), b.shl(b.and_(self.lane, 3), 1)
        put = b.add(b.add(self.shared, own), b.shl(b.add(b.mul(row, width), column), 2))
        for phase in range(phases):
            if phase:
                self._meet()
            for part in range(parts):
                for each in range(tile.warp_n // 8):
                    at = ((phase * parts + part) * (tile.warp_n // 8) + each) * 4
                    for half in range(2):
                        offset = (part * SMALL + half * 8) * width * 4 + each * 32
                        self._put(sums[at + 2 * half : at + 2 * half + 2], put, offset)
            self._meet()
            with b.scope():
                self._results(phase * parts * SMALL, parts * SMALL, warps)

    def _meet(self) -> None:
        """Wait for those who put or take the sums of the same part of the tile."""
        if self.tile.slices > 1:
            barrier(self.b)
        else:
            warp_barrier(self.b)

    def _put(self, pair: list[Value], address: Value, offset: int) -> None:
        b = self.b
        first = b.emit(f"insertelement <2 x float> poison, float {pair[0].text}, i64 0", "f32", 2)
        both = b.emit(f"insertelement <2 x float> {first.text}, float {pair[1].text}, i64 1", "f32", 2)
        b.line(
            f"store <2 x float> {both.text}, ptr addrspace(3) {shared_pointer(b, address, offset)}, align 8"
        )

    def _results(self, first: int, rows: int, warps: int) -> None:
        """Rows of a warp from `first` on, whose sums lie in shared memory: those of all slices, which share them."""
        b, tile = self.b, self.tile
        lanes = self._lanes()
        vectors = tile.warp_n // lanes  # of a row
        piece = self._piece(warps)
        source = b.add(self.shared, b.mul(piece, rows * tile.staged_width * 4))
        start = b.add(b.mul(self.slice, WARP), self.lane) if tile.slices > 1 else self.lane
        begin = b.convert("zext", start, "i64")
        with count(b, begin, rows * vectors, WARP * tile.slices) as item:
            row, vector = div(b, item, vectors), mod(b, item, vectors)
            m = add(b, add(b, self.m0, b.convert("zext", self.warp_m, "i64")), add(b, row, first))
            column = mul(b, vector, lanes)
            n = add(b, add(b, self.n0, b.convert("zext", self.warp_n, "i64")), column)
            offset = add(b, mul(b, row, tile.staged_width), column)
            place = b.add(source, b.shl(b.convert("trunc", value_of(b, offset), "i32"), 2))

            self._row(place, m, n, lanes, rows * tile.staged_width * 4 * warps)

    def _lanes(self) -> int:
        """Neighbours that a thread computes together."""
        return NARROWEST if itemsize(self.flat.out.dtype) <= 2 else NARROWEST // 2

    def _row(self, place: Value, m: Int, n: Int, lanes: int, distance: int) -> None:
        """Results of row m, if there is one, from column n on."""
        b, gemm = self.b, self.flat

        def results() -> None:
            self._neighbours(place, m, n, lanes, distance)

        extent = gemm.m.extent.as_int()
        if extent is not None and extent % self.tile.m == 0:
            results()
        else:
            branch(b, less(b, m, evaluate(b, gemm.m.extent, self.env)), results)

    def _piece(self, warps: int) -> Value:
        """Which of the parts of the tile is this warp's."""
        return self.b.and_(self.warp, warps - 1)

    def _neighbours(self, place: Value, m: Int, n: Int, lanes: int, distance: int) -> None:
        """Results of row m from column n on, whose sums are at an address, those of other slices at a distance."""
        b, extent = self.b, self.flat.n.extent

        def together() -> None:
            self.store_value(self._taken(place, lanes, distance), m, n)

        def one_by_one() -> None:
            with count(b, n, end) as column:
                distance_of = b.convert("trunc", value_of(b, sub(b, column, n)), "i32")
                self.store_value(self._taken(b.add(place, b.shl(distance_of, 2)), 1, distance), m, column)

        if is_multiple(extent, lanes) is True:
            # Columns past the end are whole vectors.
            whole = extent.as_int()
            if whole is not None and whole % self.tile.n == 0:
                together()
            else:
                branch(b, less(b, n, evaluate(b, extent, self.env)), together)
            return
        end = evaluate(b, extent, self.env)
        branch(b, less(b, add(b, n, lanes - 1), end), together, one_by_one)

    def _taken(self, place: Value, lanes: int, distance: int) -> Value:
        """Sums of all slices."""
        b, total = self.b, None
        type_ = f"<{lanes} x float>" if lanes > 1 else "float"
        for number in range(self.tile.slices):
            pointer = shared_pointer(b, place, number * distance)
            found = b.emit(
                f"load {type_}, ptr addrspace(3) {pointer}, align {min(lanes * 4, 16)}",
                "f32",
                lanes,
                pure=False,
            )
            total = found if total is None else b.add(total, found)
        assert total is not None
        return total
