"""Single operators, each compiled as a user compiles it, beside the libraries and the limits of the machine.

`python -m lampwork.bench kernels [--only PATTERN] [--threads N ...] [--seconds S] [--json FILE]`. Contenders take turns
in one process; the figures are medians. `%` is of the multiply-adds, or of the bandwidth, measured in the same run.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lampwork.bench.kernels.case import Call, Case
from lampwork.bench.kernels.cases import cases
from lampwork.bench.kernels.runs import arguments, format_limits, run, seconds_of, write
from lampwork.bench.machine import machine, where
from lampwork.bench.summary import geometric_mean
from lampwork.inspect.machine.limits import Limits
from lampwork.records import record

SAMPLE_SECONDS = 0.002


@record
class Kernel:
    """One case, measured. seconds: of a call, by contender; rate: ours, in `unit`; percent: of the limit. ratio: the
    fastest peer's time / ours. right: our result is ATen's, to 1e-4 of its size."""

    family: str
    name: str
    threads: int
    unit: str
    rate: float
    percent: float
    ratio: float
    fastest_peer: str
    seconds: dict[str, float]
    right: bool


def measure(case: Case, limits: Limits, seconds: float) -> Kernel:
    """`seconds` for all contenders together."""
    torch.manual_seed(0)
    with torch.no_grad():
        calls = case.make()
        results: dict[str, Tensor] = {name: call() for name, call in calls.items()}
        peers = [name for name in calls if name != "lampwork"]
        right = _close(results["lampwork"], results[peers[0]])
        results.clear()
        times = interleaved(calls, seconds)
    mine = times["lampwork"]
    best = min(peers, key=lambda name: times[name])
    amount = case.flops or case.reads + case.writes
    limit = (
        (limits.int8 if case.int8 else limits.gflops)
        if case.flops
        else limits.bandwidth(case.reads, case.writes)
    )
    rate = amount / mine / 1e9
    unit = ("Gop/s" if case.int8 else "GFLOP/s") if case.flops else "GB/s"
    percent = 100 * rate / limit if limit else math.nan
    return Kernel(
        case.family, case.name, limits.threads, unit, rate, percent, times[best] / mine, best, times, right
    )


def _close(ours: Tensor, theirs: Tensor) -> bool:
    distance = (ours.double() - theirs.double()).square().mean().sqrt()
    return bool(distance <= 1e-4 * theirs.double().square().mean().sqrt() + 1e-30)


def interleaved(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Median seconds of a call of each, in rounds that run each once; at least three rounds."""
    turns = {
        name: max(1, int(SAMPLE_SECONDS / max(seconds_of(call, 1), 1e-7))) for name, call in calls.items()
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    done = 0
    while done < 3 or time.perf_counter() < end:
        for name, call in calls.items():
            times[name].append(seconds_of(call, turns[name]))
        done += 1
    return {name: statistics.median(found) for name, found in times.items()}


def format_kernel(k: Kernel) -> str:
    peers = "  ".join(f"{name} {s * 1e6:9.1f}" for name, s in k.seconds.items() if name != "lampwork")
    verdict = "" if k.right else "  WRONG"
    return (
        f"{k.family:11} {k.name:28} {k.seconds['lampwork'] * 1e6:9.1f} us {k.rate:7.1f} {k.unit:7} {k.percent:4.0f}%  "
        f"x {k.ratio:5.2f}  {peers}{verdict}"
    )


def format_tables(limits: Sequence[Limits], kernels: Sequence[Kernel]) -> str:
    """Markdown: for each number of threads the limits, a mean for each family, and a row for each kernel."""
    parts: list[str] = []
    for limit in limits:
        rows = [k for k in kernels if k.threads == limit.threads]
        lines = ["| family | shapes | of the fastest peer | below 1.0 |", "|---|---|---|---|"]
        for family in dict.fromkeys(k.family for k in rows):
            own = [k for k in rows if k.family == family]
            mean = geometric_mean(k.ratio for k in own)
            lines.append(f"| {family} | {len(own)} | {mean:.2f} | {sum(k.ratio < 1 for k in own)} |")
        table = [
            "| kernel | lampwork µs | rate | of the limit | fastest peer/X | peer |",
            "|---|---|---|---|---|---|",
        ]
        for k in rows:
            name = f"{k.family} {k.name}{'' if k.right else ' (wrong)'}"
            table.append(
                f"| {name} | {k.seconds['lampwork'] * 1e6:.4g} | {k.rate:.1f} {k.unit} | {k.percent:.0f} % | "
                f"{k.ratio:.2f} | {k.fastest_peer} |"
            )
        parts += [format_limits(limit), "\n".join(lines), "\n".join(table)]
    return "\n\n".join(parts)


def main(argv: Sequence[str]) -> int:
    parser = arguments("kernels", __doc__, "family name", 0.5)
    options = parser.parse_args(argv)
    chosen = [c for c in cases() if re.search(options.only, f"{c.family} {c.name}")]
    if not chosen:
        parser.error(f"no kernel matches {options.only!r}")
    limits, found = run(
        options.threads,
        chosen,
        lambda case, limit: measure(case, limit, options.seconds),
        format_kernel,
    )
    print(f"\n{where(machine())}\n\n{format_tables(limits, found)}")
    write(options.json, limits, "kernels", found)
    return 0 if all(k.right for k in found) else 1
