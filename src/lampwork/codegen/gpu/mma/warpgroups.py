"""Matrix products by warpgroups (compute capability 9.0): `emit_groups`.

    a block of threads, for a tile of m x n results, 64 rows a warpgroup:
        start copies of the first turns of k to shared memory
        for each turn of k:
            wait for its copies, and for those of all threads
            start to multiply it (wgmma)
            start copies of the turn stages - 2 ahead, where the one was that all had multiplied by then
            wait for the products of the turn before
        what follows is as for other tiles

So a turn is multiplied while the threads start copies and wait for each other, and copies of stages - 2 turns are on
their way. What cannot be copied 16 bytes at a time is copied element by element, by code of its own.
"""

from __future__ import annotations

import re

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.gpu.mma.instructions import (
    barrier,
    commit,
    shared_pointer,
    shared_start,
    special,
    wait_for_all_but,
)
from lampwork.codegen.gpu.mma.kernel import Tiled, blocks_of
from lampwork.codegen.gpu.mma.operands import Operand, Room, operands_of
from lampwork.codegen.gpu.mma.tiles import CHUNK, WARP, Tile
from lampwork.codegen.gpu.mma.wgmma import (
    DEPTH,
    EIGHT_LINES,
    GROUP_ROWS,
    GROUP_THREADS,
    LINE,
    descriptor,
    multiply_tiles,
    show_to_products,
    wait_for_products_but,
    wait_for_sums,
)
from lampwork.codegen.gpu.products import ProductCode
from lampwork.codegen.llvm.builder import Value
from lampwork.codegen.llvm.templates.ints import add, count, div, mod, mul, value_of
from lampwork.codegen.llvm.types import itemsize
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import DType, Gemm
from lampwork.records import record

CAPABILITY = 90
"""The compute capability whose cards have the instructions: no other, not even a later one."""

K = 64  # elements of k of a turn: a line
FEWEST_STAGES = 3
MOST_VARIANTS = 5
ROWS_TOGETHER = 4  # of a lane, whose results are computed together

_NAME = re.compile(r"mma wgmma (\d+)x(\d+) stages (\d+)")


@record
class Groups:
    """Tiles of m x n results: a warpgroup for 64 rows."""

    m: int
    n: int
    stages: int

    @property
    def name(self) -> str:
        return f"mma wgmma {self.m}x{self.n} stages {self.stages}"

    @staticmethod
    def named(name: str) -> Groups | None:
        """Those of a variant, if it is one."""
        found = _NAME.fullmatch(name)
        return None if found is None else Groups(*map(int, found.groups()))

    @property
    def tile(self) -> Tile:
        """As tiles of warps of 16 rows."""
        return Tile(self.m, self.n, K, self.stages, self.m // 16, 1)

    @property
    def threads(self) -> int:
        return self.m // GROUP_ROWS * GROUP_THREADS

    def shared_bytes(self, dtype: DType) -> int:
        """Of a block, with those before the first multiple of what products ask for."""
        return self.tile.shared_bytes(dtype) + EIGHT_LINES

    def is_possible(self, dtype: DType, operands: tuple[Operand, Operand] | None, target: GpuTarget) -> bool:
        """Whether the card multiplies such tiles, and a block has a thread for each copy of a line."""
        return (
            target.capability == CAPABILITY
            and operands is not None
            and dtype in ("bf16", "f16")
            and (self.m in (64, 128) or (self.m == 192 and operands[0].along_k))
            and (self.n in (64, 128, 256) or (self.n == 192 and operands[1].along_k))
            and self.stages >= FEWEST_STAGES
            and self.shared_bytes(dtype) <= (target.scratch_bytes or 0)
        )


GROUPS = (
    Groups(128, 256, 4),
    Groups(192, 256, 4),
    Groups(128, 128, 6),
    Groups(128, 128, 3),
    Groups(128, 192, 5),
    Groups(64, 256, 5),
    Groups(64, 128, 4),
)


def best_groups(
    dtype: DType,
    operands: tuple[Operand, Operand],
    target: GpuTarget,
    m: int | None,
    n: int | None,
    batch: int | None,
) -> list[Groups]:
    """Those that are worth a measurement for a product of such a size, the best guess first. None: not known."""
    if any(operand.width != CHUNK for operand in operands):
        return []
    rows, columns = m or 1024, n or 1024
    fitting = [
        each
        for each in GROUPS
        if each.is_possible(dtype, operands, target) and each.m < 2 * rows and each.n < 2 * columns
    ]

    def cost(each: Groups) -> float:
        blocks = -(-rows // each.m) * -(-columns // each.n) * (batch or 1)
        together = max((target.scratch_bytes or 0) // each.shared_bytes(dtype), 1)
        turns = -(-blocks // (target.processors * together)) * together
        # Clocks of a turn: 2048 products each, or the lines of A and B from the second-level cache.
        return turns * max(each.m * each.n / 32, 4 * (each.m + each.n))

    return sorted(fitting, key=cost)[:MOST_VARIANTS]


def emit_groups(gemm: Gemm, target: GpuTarget, groups: Groups, name: str) -> ProductCode:
    """The kernel of a product by warpgroups.

    Raises:
        CodegenError: the card has none, its operands do not lie in lines, or the tile does not fit the card.
    """
    operands, dtype = operands_of(gemm), gemm.a.buffer.dtype
    if operands is None or not groups.is_possible(dtype, operands, target):
        raise CodegenError(f"no {groups.name} for the product {gemm.out.name!r} of {dtype} on {target.name}")
    return _Grouped(gemm, operands, target, groups).write(name, blocks_of(gemm, groups.tile))


def _room(operand: Operand, places: int, size: int) -> Room:
    """Lines of 128 bytes: along k, or of 64 places."""
    if operand.along_k:
        return Room(places, LINE, False)
    return Room(K, places * size, False, LINE)


class _Grouped(Tiled):
    """One kernel being written."""

    def __init__(
        self, gemm: Gemm, operands: tuple[Operand, Operand], target: GpuTarget, groups: Groups
    ) -> None:
        super().__init__(gemm, operands, target, groups.tile)
        self.shared_bytes = groups.shared_bytes(self.dtype)
        size = itemsize(self.dtype)
        self.rooms = _room(self.left, groups.m, size), _room(self.right, groups.n, size)

    def _threads(self) -> None:
        b = self.b
        self.thread = special(b, "tid.x")
        self.lane, self.warp = b.and_(self.thread, WARP - 1), b.lshr(self.thread, 5)
        self.slice = self.warp_n = b.const(0, "i32")
        self.warp_m = b.mul(self.warp, self.tile.warp_m)
        self.shared = b.and_(b.add(shared_start(b), EIGHT_LINES - 1), -EIGHT_LINES)
        # Of this warpgroup: 64 rows of A are as many bytes whichever way they lie.
        self.own = b.mul(b.lshr(self.thread, GROUP_THREADS.bit_length() - 1), GROUP_ROWS * LINE)

    def _piece(self, warps: int) -> Value:
        return self.warp

    def body(self, wide: bool) -> None:
        sums = [self.b.const(0.0, "f32")] * self.tile.sums
        sums = self._copied_together(sums) if wide else self._copied_by_elements(sums)
        self._epilogue(sums, self.tile.phases(self.dtype))

    def _results(self, first: int, rows: int, warps: int) -> None:
        """As elsewhere, with the same columns for a lane in all rows, and some rows together, so that what the epilogue
        loads is on its way together."""
        b, tile, lanes = self.b, self.tile, self._lanes()
        vectors = tile.warp_n // lanes  # of a row
        if WARP % vectors:
            super()._results(first, rows, warps)
            return
        step = WARP // vectors  # rows of a warp
        lane = b.convert("zext", self.lane, "i64")
        row, column = div(b, lane, vectors), mul(b, mod(b, lane, vectors), lanes)
        m = add(b, add(b, self.m0, b.convert("zext", self.warp_m, "i64")), add(b, row, first))
        n = add(b, self.n0, column)
        inside = add(b, mul(b, row, tile.staged_width), column)
        own = b.add(self.shared, b.mul(self.warp, rows * tile.staged_width * 4))
        place = b.add(own, b.shl(b.convert("trunc", value_of(b, inside), "i32"), 2))
        together = step * min(ROWS_TOGETHER, rows // step)
        with count(b, 0, rows, together) as item:
            after = b.convert("trunc", value_of(b, mul(b, item, tile.staged_width * 4)), "i32")
            places = [
                (b.add(place, b.add(after, each * tile.staged_width * 4)), add(b, m, add(b, item, each)))
                for each in range(0, together, step)
            ]
            if self._is_whole():
                self.store_values([(self._taken(at, lanes, 0), row, n) for at, row in places])
            else:
                for at, row in places:
                    self._row(at, row, n, lanes, 0)

    def _is_whole(self) -> bool:
        """Whether it is known that no tile ends behind the last row or column."""
        rows, columns = (axis.extent.as_int() for axis in (self.flat.m, self.flat.n))
        return (
            rows is not None
            and columns is not None
            and rows % self.tile.m == 0
            and columns % self.tile.n == 0
        )

    def _taken(self, place: Value, lanes: int, distance: int) -> Value:
        """Eight sums are two reads, which every other four lanes do the other way round: so eight lanes, whose reads
        are made together, reach all banks."""
        if lanes != 8:
            return super()._taken(place, lanes, distance)
        b = self.b
        turned = b.and_(self.lane, 4)
        first = b.add(place, b.shl(turned, 2))
        found = [
            b.emit(
                f"load <4 x float>, ptr addrspace(3) {shared_pointer(b, each)}, align 16",
                "f32",
                4,
                pure=False,
            )
            for each in (first, b.xor(first, CHUNK))
        ]
        is_turned = b.cmp("ne", turned, 0)
        low, high = b.select(is_turned, *reversed(found)), b.select(is_turned, *found)
        mask = ", ".join(f"i32 {each}" for each in range(8))
        whole = f"shufflevector <4 x float> {low.text}, <4 x float> {high.text}, <8 x i32> <{mask}>"
        return b.emit(whole, "f32", 8)

    def _copied_together(self, sums: list[Value]) -> list[Value]:
        b, tile = self.b, self.tile
        size, ahead = tile.stage_bytes(self.dtype), tile.stages - 2
        copies = self._copies()
        places = self._first_issued(copies, ahead)
        last = b.add(self.shared, (tile.stages - 1) * size)
        carried = [*sums, *places, self.shared, b.add(self.shared, ahead * size)]
        with b.loop(b.const(0, "i64"), self._depth(), tile.k, carried, runs=True) as loop:
            *sums, first, second, read, write = loop.carried
            wait_for_all_but(b, ahead - 1)
            show_to_products(b)
            barrier(b)
            sums = self._started(sums, read)
            # All threads have waited for the products of the last turn but one.
            places = self._issue(copies, [first, second], write, b.add(loop.index, ahead * tile.k))
            commit(b)
            wait_for_products_but(b, 1)
            loop.next = [*sums, *places, *self._next_rooms((read, write), last)]
        sums = wait_for_sums(b, loop.results[: tile.sums])
        # Copies of zeros may still be on their way.
        wait_for_all_but(b, 0)
        barrier(b)
        return sums

    def _copied_by_elements(self, sums: list[Value]) -> list[Value]:
        b, tile = self.b, self.tile
        rooms = self.shared, b.add(self.shared, self.rooms[0].bytes)
        with b.loop(b.const(0, "i64"), self._depth(), tile.k, sums, runs=True) as loop:
            self._copy_elements(rooms, loop.index)
            show_to_products(b)
            barrier(b)
            loop.next = wait_for_sums(b, self._started(loop.carried, self.shared))
            barrier(b)
        return loop.results

    def _started(self, sums: list[Value], room: Value) -> list[Value]:
        """The sums that those of one turn of k are being added to."""
        b, along = self.b, (self.left.along_k, self.right.along_k)
        panels = [None if along_k else K * LINE for along_k in along]
        left = descriptor(b, b.add(room, self.own), panels[0])
        right = descriptor(b, b.add(room, self.rooms[0].bytes), panels[1])
        return multiply_tiles(b, self.dtype, sums, (left, along[0]), (right, along[1]), K // DEPTH)
