"""What a schedule has to know of a card."""

from __future__ import annotations

from lampwork.codegen.gpu.occupancy import balance
from lampwork.codegen.target import Target
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
        """As many as give each multiprocessor several blocks: of a group each, or of threads with a result each."""
        each = 1 if along else 128
        return max(8, min(1024, self.processors * 8 * each // max(results, 1)))
