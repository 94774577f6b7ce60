"""Arithmetic on dimensions, the same for shape rules, passes, rewrites and lowering."""

from __future__ import annotations

RANK_PLUS_ONE = frozenset({"unsqueeze", "unsqueeze_copy", "stack", "_stack", "diag_embed"})
"""Operators whose results have one dimension more than their operands: their dimensions count in the results."""


def slice_bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """(start, end) of a slice with a positive step, clamped as torch does: 0 <= start <= end <= size."""
    first = 0 if start is None else start
    last = size if end is None else end
    first = min(max(first + size if first < 0 else first, 0), size)
    last = min(max(last + size if last < 0 else last, first), size)
    return first, last
