"""Offsets in one block of memory for buffers that live at different times."""

from __future__ import annotations

ALIGNMENT = 64  # bytes: one cache line, and the widest vector


class Arena:
    """Offsets by best fit: a free block is reused by the smallest request order, neighbours are merged again."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []  # (offset, bytes), sorted by offset

    def take(self, nbytes: int) -> tuple[int, int]:
        """(offset, bytes) of a block that holds `nbytes`."""
        need = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
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
