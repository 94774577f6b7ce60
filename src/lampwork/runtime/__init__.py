"""The Python face of the C++ runtime: what is callable, what it is made of, and its counters."""

from __future__ import annotations

from lampwork._C import (
    Compiled,
    Entry,
    Executable,
    Instead,
    begin_profile,
    drive,
    end_profile,
    heap_bytes,
    in_span,
    part_of,
    skip_entries,
    stats,
    trim_memory,
)
from lampwork.runtime.entry import Numbers, make_entry
from lampwork.runtime.program import Program

__all__ = [
    "Compiled",
    "Entry",
    "Executable",
    "Instead",
    "Numbers",
    "Program",
    "begin_profile",
    "drive",
    "end_profile",
    "heap_bytes",
    "in_span",
    "make_entry",
    "part_of",
    "skip_entries",
    "stats",
    "trim_memory",
]
