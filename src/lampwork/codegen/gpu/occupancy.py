"""How many blocks of a kernel a multiprocessor of an NVIDIA card holds at a time, and in how many waves a grid runs.

The limits are those of the tables "Technical Specifications per Compute Capability" and "Shared Memory per Compute
Capability" of the CUDA C++ Programming Guide.
"""

from __future__ import annotations

from lampwork.loops.ir.grid import WARP
from lampwork.records import record

REGISTERS = 1 << 16  # of a multiprocessor
REGISTERS_AT_A_TIME = 256  # that a warp is given
KIB = 1 << 10


@record
class Multiprocessor:
    """What one has: threads and blocks at a time, and bytes of shared memory for all blocks and at most for one, each
    of which takes `reserved` bytes more than it asks for and a multiple of `unit`."""

    threads: int
    blocks: int
    shared: int
    shared_of_block: int
    reserved: int = KIB
    unit: int = 128


_VOLTA = Multiprocessor(2048, 32, 96 * KIB, 96 * KIB, 0, 256)
_TURING = Multiprocessor(1024, 16, 64 * KIB, 64 * KIB, 0, 256)
_AMPERE = Multiprocessor(2048, 32, 164 * KIB, 163 * KIB)
_HOPPER = Multiprocessor(2048, 32, 228 * KIB, 227 * KIB)

MULTIPROCESSORS = {
    70: _VOLTA,
    72: _VOLTA,
    75: _TURING,
    80: _AMPERE,
    86: Multiprocessor(1536, 16, 100 * KIB, 99 * KIB),
    87: Multiprocessor(1536, 16, 164 * KIB, 163 * KIB),
    89: Multiprocessor(1536, 24, 100 * KIB, 99 * KIB),
    90: _HOPPER,
    100: _HOPPER,
    103: _HOPPER,
    110: Multiprocessor(1536, 24, 228 * KIB, 227 * KIB),
    120: Multiprocessor(1536, 24, 100 * KIB, 99 * KIB),
    121: Multiprocessor(1536, 24, 100 * KIB, 99 * KIB),
}
"""By compute capability, 90 for 9.0."""


def blocks_at_a_time(capability: int, threads: int, registers: int, shared: int = 0) -> int:
    """Blocks of so many threads that a multiprocessor holds, each thread with so many registers, each block with so
    many bytes of shared memory; 0 for a block that does not fit at all."""
    has = MULTIPROCESSORS[capability]
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // REGISTERS_AT_A_TIME) * REGISTERS_AT_A_TIME
    taken = -(-(shared + has.reserved) // has.unit) * has.unit
    if shared > has.shared_of_block:
        return 0
    found = [has.blocks, has.threads // (warps * WARP), REGISTERS // max(of_warp * warps, 1)]
    return min([*found, has.shared // taken] if taken else found)


def waves(blocks: int, processors: int, at_a_time: int) -> float:
    """The waves that a grid runs in: 1.0 fills every multiprocessor once."""
    return blocks / (processors * at_a_time)


def balance(blocks: int, processors: int) -> float:
    """The part of the time that multiprocessors are busy if each takes one block after the other: 1.0 where all get as
    many."""
    rounds = -(-blocks // processors)
    return blocks / (rounds * processors)
