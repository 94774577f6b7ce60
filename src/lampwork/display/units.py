"""Numbers with units, in three digits."""

from __future__ import annotations


def time_text(seconds: float | None) -> str:
    """ "1.23 ms", "45.6 us"; "-" for None."""
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def bytes_text(size: int) -> str:
    """ "1.2 MiB", "340 KiB"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
