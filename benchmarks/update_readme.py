"""Write the figures of one or more bench.json files between the bench markers of README.md (Lampwork and the peers'
speed-up, one row a model) and of docs/benchmarks.md (all tables)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lampwork.bench.measure import Result
from lampwork.bench.tables import format_tables

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
PEERS = ("onnxruntime", "openvino", "torch.compile")


def put(page: Path, text: str) -> None:
    """Replace what stands between the markers of a page."""
    head, rest = page.read_text().split(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


def summary(results: list[Result]) -> str:
    """One row a model: Lampwork with one and two threads, and the peers measured with one."""
    found = {(r.model, r.compiler, r.threads): r for r in results}
    lines = [
        f"| model | eager ms | lampwork ms | eager/X | 2 threads: eager/X | first call s | {' | '.join(PEERS)} |",
        "|---|---|---|---|---|---|" + "---|" * len(PEERS),
    ]
    for model in dict.fromkeys(r.model for r in results):
        one, two = found[model, "lampwork", 1], found[model, "lampwork", 2]
        peers = [found.get((model, peer, 1)) for peer in PEERS]
        cells = [f"{p.speedup:.2f}" if p and not p.failure else "" for p in peers]
        times = f"{one.eager_s * 1e3:.4g} | {one.run_s * 1e3:.3g} | {one.speedup:.2f} | {two.speedup:.2f}"
        lines.append(f"| {model} | {times} | {one.first_call_s:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    machine = documents[0]["machine"]
    results = [Result(**r) for document in documents for r in document["results"]]
    where = f"Measured on {machine['cpu']}, torch {machine['torch']}, Python {machine['python']}."
    put(ROOT / "README.md", f"{where}\n\n{summary(results)}")
    put(ROOT / "docs" / "benchmarks.md", f"{where}\n\n{format_tables(results)}")


if __name__ == "__main__":
    main()
