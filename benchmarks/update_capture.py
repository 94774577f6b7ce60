"""Write the figures of a capture.json (`python -m lampwork.bench capture --json FILE`) between the capture markers of
docs/benchmarks.md."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from pages import BENCHMARKS, put

from lampwork.bench.capture import Comparison, Dispatch
from lampwork.bench.machine import where

HEAD = (
    "| {} | capture s | first call s | torch.compile s | ratio | breaks | torch.compile's | regions "
    "| torch.compile's |\n|---|---|---|---|---|---|---|---|---|"
)


def row(c: Comparison) -> str:
    if c.failure:
        return f"| {c.name} | failed: {c.failure} | | | | | | | |"
    times = f"{c.capture_s:.3f} | {c.first_s:.3f} | {c.torch_first_s:.2f} | {c.ratio:.1f}"
    name = c.name if c.right else f"{c.name} (wrong)"
    return f"| {name} | {times} | {c.breaks} | {c.torch_breaks} | {c.regions} | {c.torch_regions} |"


def table(title: str, rows: list[Comparison]) -> str:
    return "\n".join([HEAD.format(title), *map(row, rows)])


def summary(title: str, rows: list[Comparison]) -> str:
    done = [c for c in rows if not c.failure]
    ratios = [c.ratio for c in done]
    fewer = sum(c.breaks < c.torch_breaks for c in done)
    more = sum(c.breaks > c.torch_breaks for c in done)
    right = sum(c.right for c in done)
    return (
        f"{len(rows)} {title}: {right} right; {fewer} with fewer breaks than torch.compile, {more} with more; "
        f"torch.compile takes {min(ratios):.1f} to {max(ratios):.0f} times as long, the median is "
        f"{statistics.median(ratios):.1f}."
    )


def text(document: dict[str, object], captures: list[Comparison], dispatch: Dispatch | None) -> str:
    machine = document["machine"]
    assert isinstance(machine, dict)
    networks = [c for c in captures if c.kind == "network"]
    architectures = [c for c in captures if c.kind != "network"]
    parts = [where(machine)]
    if dispatch is not None:
        parts.append(
            f"{dispatch.model}: {dispatch.n_guards} guards and {dispatch.n_weights} weights checked in "
            f"{dispatch.guards_us:.2f} µs ({dispatch.guards_after_run_us:.0f} µs right after a run); dispatch "
            f"{dispatch.dispatch_us:.2f} µs."
        )
    for title, rows in (("networks", networks), ("architectures", architectures)):
        if rows:
            parts += [summary(title, rows), table(title, rows)]
    return "\n\n".join(parts)


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    captures = [Comparison(**c) for c in document["captures"]]
    dispatch = Dispatch(**document["dispatch"]) if document["dispatch"] else None
    put(BENCHMARKS, "capture", text(document, captures, dispatch))


if __name__ == "__main__":
    main()
