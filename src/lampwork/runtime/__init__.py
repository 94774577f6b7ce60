"""The Python face of the C++ runtime: what is callable, what it is made of, and its counters."""

from __future__ import annotations

from lampwork._C import Compiled, Entry, Executable, Instead, drive, skip_entries, stats
from lampwork.runtime.entry import Numbers, make_entry
from lampwork.runtime.program import Program

__all__ = [
    "Compiled",
    "Entry",
    "Executable",
    "Instead",
    "Numbers",
    "Program",
    "drive",
    "make_entry",
    "skip_entries",
    "stats",
]
