"""What a second thread gives: Lampwork on one thread and on two, and the peers on two.

    python benchmarks/threads.py [resnet50 lstm ...] [--peers onnxruntime openvino] [--rounds 3] [--json FILE]
    python benchmarks/threads.py --idle                   # short calls after a pause, on one thread and on two

Each compiler runs in processes of its own, which take turns; Lampwork's numbers of threads take turns within one. Times
are medians. `of one`: how many times faster two threads are than one. `fastest peer`: its time over Lampwork's on two.

After a pause threads sleep, and waking them costs more than a short call. `--idle` measures products of one row, each
one after the other and each alone after a pause, with one thread and two in turn.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lampwork
from lampwork.bench.compilers import COMPILERS, Job
from lampwork.bench.machine import machine, where
from lampwork.bench.models import WORKLOADS, load

SAMPLE_SECONDS = 0.02
WIDTHS = (192, 384, 768, 1536, 3072)
PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds of a call of one network; `peers` by name, those that failed left out."""

    model: str
    one: float
    two: float
    peers: dict[str, float]

    @property
    def fastest(self) -> str:
        return min(self.peers, key=lambda name: self.peers[name], default="")


def sample(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def in_turn(call: Callable[[], Any], threads: Sequence[int], seconds: float) -> list[float]:
    """The median time of a call with each number of threads, which take turns."""
    counts: list[int] = []
    for number in threads:
        torch.set_num_threads(number)
        sample(call, 3)
        counts.append(max(1, math.ceil(SAMPLE_SECONDS / sample(call, 2))))
    found: list[list[float]] = [[] for _ in threads]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found[0]) < 5:
        for number, count, times in zip(threads, counts, found, strict=True):
            torch.set_num_threads(number)
            sample(call, 1)  # wakes the threads
            times.append(sample(call, count))
    return [statistics.median(times) for times in found]


def measure(model: str, compiler: str, seconds: float) -> list[float]:
    """In this process: seconds on one thread and on two for lampwork, on two for a peer."""
    threads = (1, 2) if compiler == "lampwork" else (2,)
    torch.set_num_threads(2)
    workload = load(model)
    with torch.no_grad():
        compiled = COMPILERS[compiler].compile(Job(workload.fn, workload.inputs, 2))
        return in_turn(lambda: compiled(*workload.inputs), threads, seconds)


def in_child(model: str, compiler: str, seconds: float) -> list[float] | None:
    command = [sys.executable, __file__, "--child", model, compiler, "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{model}, {compiler}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def row(model: str, peers: Sequence[str], rounds: int, seconds: float) -> Row:
    found: dict[str, list[list[float]]] = {}
    left = ["lampwork", *peers]
    for _ in range(rounds):
        for compiler in list(left):
            times = in_child(model, compiler, seconds)
            if times is None:
                left.remove(compiler)
                found.pop(compiler, None)
            else:
                found.setdefault(compiler, []).append(times)
    median = {
        name: [statistics.median(each) for each in zip(*times, strict=True)] for name, times in found.items()
    }
    one, two = median.pop("lampwork", [math.nan, math.nan])
    return Row(model, one, two, {name: times[0] for name, times in median.items()})


def format_table(rows: Sequence[Row]) -> str:
    lines = [
        "| model | 1 thread ms | 2 threads ms | of one | fastest peer, 2 threads | ms | peer / ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        ours = f"{r.model} | {r.one * 1e3:.4g} | {r.two * 1e3:.4g} | {r.one / r.two:.2f}"
        best = r.peers.get(r.fastest, math.nan)
        lines.append(f"| {ours} | {r.fastest} | {best * 1e3:.4g} | {best / r.two:.2f} |")
    ratios = [min(r.peers.values()) / r.two for r in rows if r.peers and r.two > 0]
    if ratios:
        scaling = statistics.geometric_mean(r.one / r.two for r in rows if r.two > 0)
        lines.append(f"| geometric mean | | | {scaling:.2f} | | | {statistics.geometric_mean(ratios):.2f} |")
    return "\n".join(lines)


def after_pauses(count: int) -> str:
    """A table of products of one row: microseconds in a row and each after a pause, on one thread and on two."""
    lines = [
        f"| 1 x n by n x n | operations | at once: 1 thread | 2 | after {PAUSE_SECONDS * 1e3:g} ms: 1 thread | 2 |",
        "|---|---|---|---|---|---|",
    ]
    for width in WIDTHS:
        x, layer = torch.randn(1, width), nn.Linear(width, width)
        call = partial(lampwork.compile(layer, options={"strict": True}), x)
        at_once = in_turn(call, (1, 2), seconds=0.5)
        alone: tuple[list[float], list[float]] = ([], [])
        for _ in range(count):
            for threads, times in enumerate(alone, 1):
                torch.set_num_threads(threads)
                time.sleep(PAUSE_SECONDS)
                times.append(sample(call, 1))
        found = (*at_once, *(statistics.median(times) for times in alone))
        cells = " | ".join(f"{seconds * 1e6:.1f}" for seconds in found)
        lines.append(f"| {width} | {2 * width * width} | {cells} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="model", help=f"any of: {', '.join(WORKLOADS)}")
    parser.add_argument(
        "--peers", nargs="*", choices=list(COMPILERS), default=["eager", "onnxruntime", "openvino"]
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes of each compiler")
    parser.add_argument("--seconds", type=float, default=2.0, help="of steady calls in each process")
    parser.add_argument("--idle", action="store_true", help="measure short calls after a pause")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rows there")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        model, compiler = options.child
        print(json.dumps(measure(model, compiler, options.seconds)))
        return 0
    print(f"{where(machine())}\n")
    if options.idle:
        with torch.no_grad():
            print(after_pauses(count=100))
        return 0
    unknown = [name for name in options.models if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}")
    rows: list[Row] = []
    for model in options.models or WORKLOADS:
        rows.append(row(model, options.peers, options.rounds, options.seconds))
        print(format_table(rows[-1:]).splitlines()[2], flush=True)
    print(f"\n{format_table(rows)}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
