"""Rows as cells and as text."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lampwork.display.units import time_text
from lampwork.inspect.profile.rows import Row

HEADS = ("self", "share", "calls", "a call", "GFLOP/s", "GB/s", "of limit", "kind", "what", "where")
_LEFT = frozenset({"kind", "what", "where"})


def cells(row: Row, wall: float) -> tuple[str, ...]:
    # The name of the file is enough beside a module; by="line" shows all of it.
    where = ", ".join(filter(None, (row.module, row.line.split(" in ")[0].rpartition(os.sep)[2])))
    return (
        time_text(row.seconds),
        f"{100 * row.seconds / wall:.1f} %" if wall else "",
        str(row.calls),
        time_text(row.seconds / row.calls) if row.calls else "",
        "" if row.gflops is None else f"{row.gflops:.1f}",
        "" if row.gbs is None else f"{row.gbs:.1f}",
        "" if row.limit is None else f"{100 * row.limit:.0f} %",
        row.kind,
        row.name,
        where,
    )


def format_text(rows: Sequence[Row], wall: float, left_out: Sequence[Row] = ()) -> str:
    """A table with aligned columns; what is left out is counted in its last line."""
    lines = [HEADS, *(cells(row, wall) for row in rows)]
    # Columns that say nothing here are left out.
    shown = [i for i in range(len(HEADS)) if any(line[i] for line in lines[1:]) or i in (0, 8)]
    widths = {i: max(len(line[i]) for line in lines) for i in shown}
    made = [
        "  ".join(
            line[i].ljust(widths[i]) if HEADS[i] in _LEFT else line[i].rjust(widths[i]) for i in shown
        ).rstrip()
        for line in lines
    ]
    if left_out:
        rest = sum(row.seconds for row in left_out)
        made.append(f"... and {len(left_out)} more: {time_text(rest)}")
    return "\n".join(made)
