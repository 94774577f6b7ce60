"""The results of a run as lines and as Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lampwork.bench.measure import Result


def format_row(r: Result) -> str:
    """One line for one measurement."""
    head = f"{r.dtype:4} {r.threads} thread{'s' if r.threads > 1 else ' '} {r.model:20} {r.compiler:36}"
    if r.failure:
        return f"{head} failed: {r.failure}"
    verdict = "" if r.right else f"  WRONG: error {r.error:.2e}, eager's {r.eager_error:.2e}"
    return (
        f"{head} first call {r.first_call_s:7.2f} s  run {r.run_s * 1e3:10.4f} ms  "
        f"eager {r.eager_s * 1e3:10.4f} ms  {r.speedup:5.2f}x  peak {r.peak_bytes / 2**20:6.0f} MiB{verdict}"
    )


def groups(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Results that may be compared, each list with its title: those of one precision and number of threads."""
    found: dict[tuple[str, int], list[Result]] = {}
    for r in results:
        found.setdefault((r.dtype, r.threads), []).append(r)
    return [
        (f"{dtype}, {threads} thread{'s' if threads > 1 else ''}", rows)
        for (dtype, threads), rows in sorted(found.items(), key=lambda item: (item[0][0] != "f32", item[0]))
    ]


def format_tables(results: Sequence[Result]) -> str:
    """Markdown: speed-up over eager, first calls and peak memory, for each precision and number of threads."""
    parts: list[str] = []
    for title, rows in groups(results):
        parts.append(f"Speed-up over eager, {title}\n\n{_table(rows, _speed)}")
        parts.append(f"First call, seconds, {title}\n\n{_table(rows, _first)}")
        parts.append(f"Peak memory of runs, MiB, {title}\n\n{_table(rows, _peak)}")
    return "\n\n".join(parts)


def _table(rows: Sequence[Result], cell: Callable[[Result], str]) -> str:
    models = list(dict.fromkeys(r.model for r in rows))
    compilers = list(dict.fromkeys(r.compiler for r in rows))
    found = {(r.model, r.compiler): r for r in rows}
    lines = [f"| model | {' | '.join(compilers)} |", f"|---|{'---|' * len(compilers)}"]
    for model in models:
        cells = [cell(found[model, c]) if (model, c) in found else "" for c in compilers]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _speed(r: Result) -> str:
    if r.failure:
        return "failed"
    if r.compiler == "eager":
        return f"{r.run_s * 1e3:.4g} ms"
    return f"{r.speedup:.2f}" if r.right else f"{r.speedup:.2f} (wrong)"


def _first(r: Result) -> str:
    return "failed" if r.failure or math.isnan(r.first_call_s) else f"{r.first_call_s:.2f}"


def _peak(r: Result) -> str:
    return "failed" if r.failure else f"{r.peak_bytes / 2**20:.0f}"
