"""The tiles of a product on tensor cores: which there are, what they need, and which are worth a measurement.

A block of threads computes m x n results. It goes along k in turns of `k` elements, of which `stages` lie in shared
memory or are on their way there. Its warps divide the tile: `rows` of them along m, `columns` along n; `slices` of them
divide each turn, and their sums are added in the end.
"""

from __future__ import annotations

import re

from lampwork.codegen.gpu.card import GpuTarget
from lampwork.codegen.llvm.types import itemsize
from lampwork.errors import CodegenError
from lampwork.loops.ir.nodes import DType
from lampwork.records import record

WARP = 32
CHUNK = 16  # bytes that a thread copies at a time
STEP = 32  # bytes along k of one instruction: 16 elements of a half type, 8 of TF32
PAD = 8  # floats between rows of sums in shared memory, so that rows are in different banks
SMALL = 16  # rows of an instruction
MOST_SUMS = 128  # of a thread, so that they stay in registers
VARIANTS = 7

_NAME = re.compile(r"mma (\d+)x(\d+)x(\d+) stages (\d+) warps (\d+)x(\d+)x(\d+)")


@record
class Tile:
    """m, n, k: of a block, k being that of a turn. rows, columns, slices: warps along m, n and k."""

    m: int
    n: int
    k: int
    stages: int
    rows: int
    columns: int
    slices: int = 1

    @property
    def name(self) -> str:
        warps = f"{self.rows}x{self.columns}x{self.slices}"
        return f"mma {self.m}x{self.n}x{self.k} stages {self.stages} warps {warps}"

    @staticmethod
    def named(name: str) -> Tile:
        """The tile of a variant. Raises CodegenError for another name."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise CodegenError(f"no tile is called {name!r}")
        return Tile(*map(int, found.groups()))

    @property
    def threads(self) -> int:
        return self.rows * self.columns * self.slices * WARP

    @property
    def warp_m(self) -> int:
        """Rows of a warp."""
        return self.m // self.rows

    @property
    def warp_n(self) -> int:
        """Columns of a warp."""
        return self.n // self.columns

    @property
    def sums(self) -> int:
        """Of a thread."""
        return self.warp_m * self.warp_n // WARP

    def stage_bytes(self, dtype: DType) -> int:
        return (self.m + self.n) * self.k * itemsize(dtype)

    @property
    def staged_width(self) -> int:
        """Floats from one row of a warp's sums to the next, in shared memory."""
        return self.warp_n + PAD

    @property
    def staged_bytes(self) -> int:
        """Of the sums of all warps in shared memory, for 16 rows of each."""
        return self.threads // WARP * SMALL * self.staged_width * 4

    def phases(self, dtype: DType) -> int:
        """In how many parts the sums go through shared memory: as few as fit where the operands were."""
        whole = self.warp_m // SMALL
        room = max(self.stages * self.stage_bytes(dtype) * 9 // 8, self.staged_bytes)
        return next(
            n for n in range(1, whole + 1) if whole % n == 0 and whole // n * self.staged_bytes <= room
        )

    def shared_bytes(self, dtype: DType) -> int:
        """Of a block."""
        staged = self.warp_m // SMALL // self.phases(dtype) * self.staged_bytes
        return max(self.stages * self.stage_bytes(dtype), staged)

    def is_possible(self, dtype: DType, target: GpuTarget) -> bool:
        """Whether its parts divide each other, and a block fits a multiprocessor."""
        steps = self.k * itemsize(dtype) // STEP
        powers = all(each > 0 and each & (each - 1) == 0 for each in (self.m, self.n, self.k, self.threads))
        return (
            powers
            and self.stages >= 2
            and self.warp_m % SMALL == 0
            and self.warp_n % SMALL == 0
            and self.sums <= MOST_SUMS
            and steps % self.slices == 0
            and steps > 0
            and self.threads <= 1024
            and all(size <= self.threads * CHUNK for size in self._row_bytes(dtype))
            and self.shared_bytes(dtype) <= (target.scratch_bytes or 0)
        )

    def _row_bytes(self, dtype: DType) -> tuple[int, ...]:
        """Of rows in shared memory, whichever way the operands lie."""
        return tuple(size * itemsize(dtype) for size in (self.m, self.n, self.k))


# (m, n, bytes of k, stages, warps along m, n, k)
_SHAPES = (
    (128, 256, 64, 3, 2, 4, 1),
    (128, 256, 128, 3, 2, 4, 1),
    (256, 128, 64, 3, 4, 2, 1),
    (128, 128, 64, 4, 2, 2, 1),
    (128, 128, 128, 3, 2, 2, 1),
    (128, 128, 128, 3, 2, 4, 1),
    (128, 64, 64, 4, 2, 2, 1),
    (64, 128, 64, 4, 2, 2, 1),
    (64, 256, 64, 4, 1, 4, 1),
    (64, 64, 128, 4, 2, 2, 1),
    (64, 64, 128, 4, 2, 2, 2),
    (64, 32, 128, 5, 2, 1, 2),
    (32, 64, 128, 5, 1, 2, 2),
    (32, 32, 256, 4, 1, 1, 4),
    (16, 128, 128, 4, 1, 4, 1),
    (16, 64, 128, 5, 1, 2, 2),
    (16, 32, 256, 5, 1, 1, 4),
    (16, 16, 512, 4, 1, 1, 8),
)


def tiles(dtype: DType, target: GpuTarget) -> list[Tile]:
    """Those that fit a card."""
    found = [
        Tile(m, n, size // itemsize(dtype), stages, rows, columns, slices)
        for m, n, size, stages, rows, columns, slices in _SHAPES
    ]
    return [tile for tile in found if tile.is_possible(dtype, target)]


def best_tiles(
    dtype: DType, target: GpuTarget, m: int | None, n: int | None, k: int | None, batch: int | None
) -> list[Tile]:
    """Those that are worth a measurement for a product of such a size, the best guess first. None: not known."""
    sizes = (m or 1024, n or 1024, k or 1024)
    fitting = [tile for tile in tiles(dtype, target) if _is_filled(tile, sizes)]
    return sorted(fitting, key=lambda tile: _cost(tile, dtype, target, sizes, batch or 1))[:VARIANTS]


def _is_filled(tile: Tile, sizes: tuple[int, int, int]) -> bool:
    """Whether a product has more rows and columns than half a tile, or the smallest one is not filled either."""
    return (tile.m < 2 * sizes[0] or tile.m == SMALL) and (tile.n < 2 * sizes[1] or tile.n <= 2 * SMALL)


def _cost(tile: Tile, dtype: DType, target: GpuTarget, sizes: tuple[int, int, int], batch: int) -> float:
    """What a tile takes, in some unit of time.

    A multiprocessor multiplies at its rate if it has warps enough, and what a tile reads is shared by its rows and
    columns: the larger of the two times, for as many tiles as come one after the other.
    """
    m, n, k = sizes
    blocks = -(-m // tile.m) * -(-n // tile.n) * batch
    by_shared = max((target.scratch_bytes or 0) // tile.shared_bytes(dtype), 1)
    by_registers = max(65536 // (tile.threads * (tile.sums + 96)), 1)
    together = min(by_shared, by_registers, -(-blocks // target.processors))
    turns = -(-blocks // (target.processors * together)) * together
    multiplied = tile.m * tile.n / 1024
    # A warp that multiplies less for each operand that it reads from shared memory waits for them.
    multiplied *= 1 + 16 / tile.warp_m + 16 / tile.warp_n
    few = max(1.0, 4 / (together * tile.threads // WARP))
    read = (tile.m + tile.n) / 24
    return turns * (max(multiplied * few, read) * k + 8 * tile.k * tile.stages + tile.m * tile.n / 8)
