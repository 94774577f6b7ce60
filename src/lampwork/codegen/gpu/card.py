"""What a schedule has to know of a card."""

from __future__ import annotations

from lampwork.codegen.gpu.occupancy import balance
from lampwork.codegen.target import Target
from lampwork.loops.ir.grid import AT_A_TIME, PIECE_THREADS
from lampwork.records import record

ENOUGH = 0.8
"""The part of the time that multiprocessors are busy, from which further blocks are not worth what they cost."""


@record
class GpuTarget(Target):
    """A card. Its vector is a warp.

    capability: 90 for 9.0 of an NVIDIA card; 0 for others. device: its number, if it is here. tf32: products of float32
    may round their operands to TF32, as torch is set to.
    """

    capability: int = 0
    device: int | None = None
    tf32: bool = False

    def fills(self, blocks: int) -> bool:
        return balance(blocks, self.processors) >= ENOUGH

    def pieces(self, results: int, *, along: bool) -> int:
        """As many as give each multiprocessor the blocks that it runs at a time, of a piece each; or several blocks of
        threads with a result each."""
        if along:
            return max(2, self.processors * (AT_A_TIME // PIECE_THREADS) // max(results, 1))
        return max(8, min(1024, self.processors * 8 * 128 // max(results, 1)))
