"""Write the figures of gpu.json files (`benchmarks/gpu.py --json FILE`) of one card between the markers of docs/gpu.md.

Rows of the same name are put together, the later file's figures first.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pages import ROOT, put

PAGE = ROOT / "docs" / "gpu.md"
PEERS = {
    "default": "torch.compile",
    "reduce-overhead": "its reduce-overhead",
    "max-autotune": "its max-autotune",
}
WRONG = " (wrong)"

Row = dict[str, Any]


def merged(documents: Sequence[dict[str, Any]]) -> dict[tuple[str, str, str], Row]:
    found: dict[tuple[str, str, str], Row] = {}
    for document in documents:
        for row in document["rows"]:
            known = found.setdefault((row["section"], row["name"], row["dtype"]), {})
            for key, value in row.items():
                known[key] = {**known.get(key, {}), **value} if isinstance(value, dict) else value
    return found


def peers_of(rows: Sequence[Row]) -> list[str]:
    return [
        peer
        for peer in PEERS
        if any(peer in each for row in rows for each in row.values() if isinstance(each, dict))
    ]


def number(row: Row, kind: str, compiler: str, digits: int, scale: float = 1.0) -> str:
    if compiler in row.get("failures", {}):
        return "fails"
    value = row.get(kind, {}).get(compiler)
    if value is None:
        return "-"
    return f"{value * scale:.{digits}f}{WRONG if compiler in row.get('wrong', {}) else ''}"


def times(row: Row, compiler: str, kind: str = "ms", ours: str = "ours") -> str:
    values = row.get(kind, {})
    return f"{values[compiler] / values[ours]:.2f}" if {compiler, ours} <= values.keys() else "-"


def table(cells: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |" for line in cells]
    return "\n".join([lines[0], "|---" * len(cells[0]) + "|", *lines[1:]])


def mean_of(rows: Sequence[Row], compiler: str, kind: str = "ms", ours: str = "ours") -> str:
    """The geometric mean of how many times faster ours is."""
    pairs = [row[kind] for row in rows if {compiler, ours} <= row.get(kind, {}).keys()]
    if not pairs:
        return "-"
    return f"{math.exp(sum(math.log(pair[compiler] / pair[ours]) for pair in pairs) / len(pairs)):.2f}"


def is_told(row: Row) -> bool:
    """Whether a run came to what a row is about."""
    return "ours" in row.get("failures", {}) or any(
        "ours" in each for each in row.values() if isinstance(each, dict)
    )


def of_networks(rows: Sequence[Row], copies: dict[str, float]) -> str:
    peers = peers_of(rows)
    head = ["", "first call, s", "ms", "times eager", "generated kernels + calls"]
    for peer in peers:
        head += [f"{PEERS[peer]}: first call, s", "ms", "ours is times faster"]
    cells = [head]
    for row in rows:
        line = [
            f"{row['name']} {row['dtype']}",
            number(row, "first_s", "ours", 2),
            number(row, "ms", "ours", 2),
        ]
        line += [times(row, "eager"), row.get("kernels", "-")]
        for peer in peers:
            line += [number(row, "first_s", peer, 1), number(row, "ms", peer, 2), times(row, peer)]
        cells.append(line)
    means = ["geometric mean", "", "", mean_of(rows, "eager"), ""]
    for peer in peers:
        means += ["", "", mean_of(rows, peer)]
    return table([*cells, means])


def of_small(rows: Sequence[Row], copies: dict[str, float]) -> str:
    peers = peers_of(rows)
    compilers = {"eager": "eager", "ours": "default", "ours reduce": "reduce-overhead"} | {
        p: PEERS[p] for p in peers
    }
    cells = [["", *compilers.values()]]
    for row in rows:
        pairs = [[number(row, kind, c, 1) for kind in ("enqueue_us", "latency_us")] for c in compilers]
        cells.append([row["name"], *(" / ".join(pair) for pair in pairs)])
    return table(cells)


def of_functions(rows: Sequence[Row], copies: dict[str, float]) -> str:
    peers = ["eager", *peers_of(rows)]
    names = list(dict.fromkeys(row["name"] for row in rows))
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    by_name = {(row["name"], row["dtype"]): row for row in rows}
    head = [""]
    for dtype in dtypes:
        head += [f"{dtype}: us", "of copy", *(f"times {PEERS.get(peer, peer)}" for peer in peers)]
    cells = [head]
    for name in names:
        line = [name]
        for dtype in dtypes:
            row = by_name.get((name, dtype), {})
            ms = row.get("ms", {}).get("ours")
            rate = "-" if ms is None else f"{100 * row['bytes'] / ms / 1e6 / copies[dtype]:.0f} %"
            line += [number(row, "ms", "ours", 1, 1e3), rate, *(times(row, peer) for peer in peers)]
        cells.append(line)
    means = ["geometric mean"]
    for dtype in dtypes:
        part = [row for row in rows if row["dtype"] == dtype]
        means += ["", "", *(mean_of(part, peer) for peer in peers)]
    return table([*cells, means])


SECTIONS: dict[str, tuple[str, Callable[[Sequence[Row], dict[str, float]], str]]] = {
    "networks": (
        "Networks, inference (batches and lengths: `benchmarks/gpu_workloads.py`); a call in a loop:",
        of_networks,
    ),
    "training": ("Steps of training with AdamW, bf16 being autocast:", of_networks),
    "small": (
        "Functions that cost less than their launches: microseconds until the host is free, and until the result is "
        "there:",
        of_small,
    ),
    "functions": (
        "Functions of 16 million elements, by events on the device; the part of `copy_`'s bandwidth, and how many "
        "times faster than others:",
        of_functions,
    ),
}


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    if any(document["device"] != documents[0]["device"] for document in documents):
        raise SystemExit("figures of several cards do not go into one table")
    copies: dict[str, float] = {}
    for document in documents:
        copies.update(document["copy GB/s"])
    rows = merged(documents)
    rates = " and ".join(f"{rate:.0f} GB/s in {dtype}" for dtype, rate in copies.items())
    parts = [f"{documents[0]['device']}, torch {documents[-1]['torch']}; `copy_` ran at {rates}."]
    for section, (said, tabulated) in SECTIONS.items():
        part = [row for (kind, _, _), row in rows.items() if kind == section and is_told(row)]
        if part:
            parts += [said, tabulated(part, copies)]
    put(PAGE, "gpu", "\n\n".join(parts))


if __name__ == "__main__":
    main()
