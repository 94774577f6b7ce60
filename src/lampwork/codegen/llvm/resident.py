"""How much of LLVM's library stays in memory between compilations.

A compilation touches 36 to 60 MB of its code and tables: more than most compiled functions need for their tensors.
They are pages of a file, so the system may be asked to take them back, and maps them again, out of its own cache, when
the next compilation touches them. Measured here: 2 ms to give them back, 6 ms to read them again.
"""

from __future__ import annotations

import time

from lampwork import _C
from lampwork.codegen.llvm.library import llvm_library

PAUSE_SECONDS = 0.5
"""Compilations that follow each other faster are a burst."""
BURST_SECONDS = 0.2
"""Within a burst the library is given back after so much work: a twenty-fifth of it goes into that."""


class Resident:
    """When to give it back."""

    def __init__(self) -> None:
        self._work = 0.0
        self._given_back = float("-inf")

    def worked(self, seconds: float) -> bool:
        """Note that compiling took so long; gives whether the library was given back. Threads that compile at once may
        do so once more or less."""
        now = time.monotonic()
        self._work += seconds
        if self._work < BURST_SECONDS and now - self._given_back < PAUSE_SECONDS:
            return False
        self._work, self._given_back = 0.0, now
        give_back()
        return True


def give_back() -> int:
    """Bytes of LLVM's code and constants that the system took back. Code that runs meanwhile is read again."""
    return _C.drop_code_pages(llvm_library().address)


resident = Resident()
