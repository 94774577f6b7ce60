"""Offsets in one block of memory for buffers that live at different times."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

ALIGNMENT = 64  # bytes: one cache line, and the widest vector
DEVICE_ALIGNMENT = 256  # as memory of an accelerator's allocator

_WORTH_A_SECOND_LOOK = 1 << 20
"""Bytes of an arena whose gaps are worth milliseconds."""
_MOST_BUFFERS = 512


def place(
    memory: Sequence[tuple[bool, int]], nbytes: Mapping[int, int], alignment: int = ALIGNMENT
) -> tuple[dict[int, int], int]:
    """Where each buffer lies, in bytes, and the size of the arena.

    memory: (whether it is taken or given back, buffer), in order; what is not given back stays to the end. nbytes: of
    each buffer. In the order in which they come, buffers leave gaps that nothing fits; large arenas are placed once
    more, the largest buffer first, and the smaller result counts.
    """
    arena = Arena(alignment)
    offsets: dict[int, int] = {}
    blocks: dict[int, tuple[int, int]] = {}
    lives: dict[int, tuple[int, int]] = {}
    living, most = 0, 0
    for at, (taken, number) in enumerate(memory):
        if taken:
            blocks[number] = arena.take(nbytes[number])
            offsets[number] = blocks[number][0]
            lives[number] = (at, len(memory))
            living += blocks[number][1]
            most = max(most, living)
        else:
            arena.give(*blocks[number])
            lives[number] = (lives[number][0], at)
            living -= blocks[number][1]
    # No placement is smaller than what lives at once.
    if arena.size < _WORTH_A_SECOND_LOOK or arena.size < 1.02 * most or len(blocks) > _MOST_BUFFERS:
        return offsets, arena.size
    second, size = largest_first({number: block[1] for number, block in blocks.items()}, lives)
    return (second, size) if size < arena.size else (offsets, arena.size)


def largest_first(
    sizes: Mapping[int, int], lives: Mapping[int, tuple[int, int]]
) -> tuple[dict[int, int], int]:
    """Offsets of buffers by size, the largest first, each in the lowest gap between those that live when it does.

    (Greedy by size: Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020.)
    """
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), by offset
    offsets: dict[int, int] = {}
    total = 0
    for number in sorted(sizes, key=lambda each: (-sizes[each], lives[each])):
        (first, last), need = lives[number], sizes[number]
        offset = 0
        for start, end, since, until in placed:
            if since < last and first < until:
                if start - offset >= need:
                    break
                offset = max(offset, end)
        offsets[number] = offset
        bisect.insort(placed, (offset, offset + need, first, last))
        total = max(total, offset + need)
    return offsets, total


class Arena:
    """Offsets by best fit: a free block is reused by the smallest request order, neighbours are merged again."""

    def __init__(self, alignment: int = ALIGNMENT) -> None:
        self.size = 0
        self._alignment = alignment
        self._free: list[tuple[int, int]] = []  # (offset, bytes), sorted by offset

    def take(self, nbytes: int) -> tuple[int, int]:
        """(offset, bytes) of a block that holds `nbytes`."""
        need = max(self._alignment, -(-nbytes // self._alignment) * self._alignment)
        fitting = [(size, i) for i, (_, size) in enumerate(self._free) if size >= need]
        if fitting:
            _, i = min(fitting)
            offset, size = self._free[i]
            self._free[i : i + 1] = [(offset + need, size - need)] if size > need else []
            return offset, need
        if self._free and sum(self._free[-1]) == self.size:
            # The last free block touches the end: grow it instead of leaving a hole.
            offset, _ = self._free.pop()
        else:
            offset = self.size
        self.size = offset + need
        return offset, need

    def give(self, offset: int, nbytes: int) -> None:
        """Free a block that `take` gave."""
        self._free.append((offset, nbytes))
        self._free.sort()
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged
