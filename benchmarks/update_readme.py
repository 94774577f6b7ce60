"""Write the figures of one or more bench.json files between the bench markers of README.md (Lampwork's speed-up and the
peers', one row a model) and of docs/benchmarks.md (summaries and all tables)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pages import BENCHMARKS, README, put

from lampwork.bench.machine import where
from lampwork.bench.measure import Result
from lampwork.bench.summary import format_summary, summarize
from lampwork.bench.tables import format_tables

PEERS = ("onnxruntime", "openvino", "torch.compile-freezing", "torch.compile")


def table(results: Sequence[Result]) -> str:
    """One row a model: Lampwork with one and two threads, and the peers measured with one; one precision."""
    found = {(r.model, r.compiler, r.threads): r for r in results if not r.failure}
    peers = [peer for peer in PEERS if any(r.compiler == peer for r in results)]
    lines = [
        f"| model, {results[0].dtype} | eager ms | lampwork ms | eager/X | 2 threads: eager/X | first call s | "
        f"{' | '.join(peers)} |",
        "|---|---|---|---|---|---|" + "---|" * len(peers),
    ]
    for model in dict.fromkeys(r.model for r in results):
        one, two = (found.get((model, "lampwork", threads)) for threads in (1, 2))
        times = ["", "", "", speed(two), ""]
        if one is not None:
            times = [f"{one.eager_s * 1e3:.4g}", f"{one.run_s * 1e3:.3g}", speed(one), speed(two)]
            times.append(f"{one.first_call_s:.2f}")
        cells = [speed(found.get((model, peer, 1))) for peer in peers]
        lines.append(f"| {' | '.join([model, *times, *cells])} |")
    return "\n".join(lines)


def speed(r: Result | None) -> str:
    if r is None:
        return ""
    return f"{r.speedup:.2f}" if r.right else f"{r.speedup:.2f} (wrong)"


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    machines = {where(document["machine"]) for document in documents}
    if len(machines) != 1:
        raise SystemExit(
            f"figures of several machines do not go into one table: {'; '.join(sorted(machines))}"
        )
    results = [Result(**r) for document in documents for r in document["results"]]
    head = machines.pop()
    tables = [
        table([r for r in results if r.dtype == dtype]) for dtype in dict.fromkeys(r.dtype for r in results)
    ]
    put(README, "bench", "\n\n".join([head, *tables]))
    sums = [format_summary(s) for s in summarize(results)]
    put(BENCHMARKS, "bench", "\n\n".join([head, *sums, format_tables(results)]))


if __name__ == "__main__":
    main()
