"""What a run amounts to: `python -m lampwork.bench summary FILE ... [--by speedup] [--ours NAME]`.

Each model counts once: the fastest peer's time over ours. A peer that failed or is wrong is no peer; eager is one. By
default the times are those of each compiler's own process; with `--by speedup` they are first divided by eager's in the
same process, which evens out a machine that changes its pace between processes, and is misled where eager's own time
changes with the process (fresh pages for large temporaries).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from lampwork.bench.measure import Result
from lampwork.bench.tables import groups
from lampwork.records import record

OURS = "lampwork"


@record
class Ratio:
    """A number of one model against one peer; above 1 is in our favour."""

    model: str
    peer: str
    value: float


@record
class Summary:
    """Of the results of one precision and number of threads.

    fastest: the fastest peer's time / ours, a model each. peers: geometric mean of time / ours, and over how many
    models, by peer. wrong, failed: our models that are. first_calls: ours in seconds. first_ratios: the first call of
    the peer that has the shortest one of those that compile / ours. memory: our peak / eager's (below 1 is in our
    favour).
    """

    title: str
    fastest: tuple[Ratio, ...]
    peers: dict[str, tuple[float, int]]
    wrong: tuple[str, ...]
    failed: tuple[str, ...]
    first_calls: dict[str, float]
    first_ratios: tuple[Ratio, ...]
    memory: dict[str, float]

    @property
    def below(self) -> tuple[Ratio, ...]:
        """Where a peer is faster than we are, the worst first."""
        return tuple(sorted((r for r in self.fastest if r.value < 1), key=lambda r: r.value))


def geometric_mean(values: Iterable[float]) -> float:
    """NaN for no values."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summarize(results: Sequence[Result], by: str = "time", ours: str = OURS) -> list[Summary]:
    """A summary for each precision and number of threads. by: "time" or "speedup"."""
    return [_summary(title, rows, by, ours) for title, rows in groups(results)]


def _summary(title: str, rows: Sequence[Result], by: str, ours: str) -> Summary:
    mine = {r.model: r for r in rows if r.compiler == ours}
    peers: dict[str, list[Result]] = {}
    for r in rows:
        if r.compiler != ours and not r.failure and r.right:
            peers.setdefault(r.model, []).append(r)
    right = {name: r for name, r in mine.items() if not r.failure and r.right}
    fastest: list[Ratio] = []
    firsts: list[Ratio] = []
    memory: dict[str, float] = {}
    against: dict[str, list[float]] = {}
    for name, our in right.items():
        ratios = [Ratio(name, p.compiler, _ratio(p, our, by)) for p in peers.get(name, [])]
        for ratio in ratios:
            against.setdefault(ratio.peer, []).append(ratio.value)
        if ratios:
            fastest.append(min(ratios, key=lambda r: r.value))
        compiling = [p for p in peers.get(name, []) if p.compiler != "eager"]
        if compiling:
            quickest = min(compiling, key=lambda p: p.first_call_s)
            firsts.append(Ratio(name, quickest.compiler, quickest.first_call_s / our.first_call_s))
        for p in peers.get(name, []):
            if p.compiler == "eager" and p.peak_bytes:
                memory[name] = our.peak_bytes / p.peak_bytes
    return Summary(
        title,
        tuple(fastest),
        {peer: (geometric_mean(values), len(values)) for peer, values in against.items()},
        tuple(name for name, r in mine.items() if not r.failure and not r.right),
        tuple(name for name, r in mine.items() if r.failure),
        {name: r.first_call_s for name, r in right.items()},
        tuple(firsts),
        memory,
    )


def _ratio(peer: Result, our: Result, by: str) -> float:
    """How many times as long the peer takes."""
    if by == "speedup":
        return our.speedup / peer.speedup
    return peer.run_s / our.run_s


def format_summary(s: Summary) -> str:
    """Markdown: a title and a list of sentences."""
    right = len(s.first_calls)
    lines = [
        f"Summary, {s.title}",
        "",
        f"* {right} model{'s' * (right != 1)} right{_named(s.wrong, s.failed)}.",
    ]
    if s.fastest:
        low, high = (pick(s.fastest, key=lambda r: r.value) for pick in (min, max))
        lines.append(
            f"* Against the fastest peer of each: {geometric_mean(r.value for r in s.fastest):.2f} (geometric mean "
            f"of {len(s.fastest)}), from {low.value:.2f} ({low.model}, {low.peer}) to {high.value:.2f} ({high.model}, "
            f"{high.peer})."
        )
        below = ", ".join(f"{r.model} {r.value:.2f} ({r.peer})" for r in s.below)
        lines.append(f"* Below 1.0: {below or 'none'}.")
    if s.peers:
        each = ", ".join(f"{peer} {mean:.2f} ({count})" for peer, (mean, count) in s.peers.items())
        lines.append(f"* Against each peer (geometric mean, models): {each}.")
    if s.first_calls:
        name = max(s.first_calls, key=lambda n: s.first_calls[n])
        text = f"* First call: {geometric_mean(s.first_calls.values()):.2f} s (geometric mean), at most "
        text += f"{s.first_calls[name]:.2f} s ({name})"
        if s.first_ratios:
            mean = geometric_mean(r.value for r in s.first_ratios)
            text += f"; the quickest peer that compiles takes {mean:.1f} times as long"
        lines.append(f"{text}.")
    if s.memory:
        name = max(s.memory, key=lambda n: s.memory[n])
        lines.append(
            f"* Peak memory of runs: {geometric_mean(s.memory.values()):.2f} of eager's (geometric mean), at most "
            f"{s.memory[name]:.2f} ({name})."
        )
    return "\n".join(lines)


def _named(wrong: Sequence[str], failed: Sequence[str]) -> str:
    parts = [
        f", {len(names)} {what} ({', '.join(names)})"
        for names, what in ((wrong, "wrong"), (failed, "failed"))
        if names
    ]
    return "".join(parts)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lampwork.bench summary", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what `--json` wrote")
    parser.add_argument("--by", choices=["time", "speedup"], default="time")
    parser.add_argument(
        "--ours", default=OURS, metavar="NAME", help="the compiler that is compared with the others"
    )
    options = parser.parse_args(argv)
    results = [Result(**r) for file in options.files for r in json.loads(file.read_text())["results"]]
    print("\n\n".join(format_summary(s) for s in summarize(results, options.by, options.ours)))
    return 0
