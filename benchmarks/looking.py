"""What it costs to look: reports against compilations, and profiles against the calls that they measure.

    OMP_NUM_THREADS=1 python benchmarks/looking.py [bert resnet50 ...] [--rounds 30]

For each network:

    compile   seconds of a first call, as a user has it
    explain   the same call under `lampwork.explain`, which sees how long the kernels took besides
    report    making the report of it: data and page
    size      of the page, in MB
    profiled  a call inside of `lampwork.profile()` against one outside, in turn: median, and quartiles of the ratios
    sum       the seconds of all rows of a profile against its wall clock
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import lampwork
from lampwork.bench.models import load


def seconds_of(fn: Any, *args: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = fn(*args)
    return time.perf_counter() - begin, result


def reported(model: Any, inputs: tuple[Any, ...]) -> str:
    first, _ = seconds_of(lampwork.compile(model), *inputs)
    explained, explanation = seconds_of(lampwork.explain(model), *inputs)
    with tempfile.TemporaryDirectory() as folder:
        made, page = seconds_of(explanation.save, Path(folder) / "report.html")
        size = page.stat().st_size / 1e6
    return (
        f"compile {first:.2f} s  explain {explained:.2f} s  report {made:.2f} s: {made / first:.2f} of compile  "
        f"size {size:.2f} MB"
    )


def profiled(compiled: Any, inputs: tuple[Any, ...], rounds: int) -> str:
    compiled(*inputs)
    calls = max(1, round(0.05 / min(seconds_of(compiled, *inputs)[0] for _ in range(5))))

    def sample() -> None:
        for _ in range(calls):
            compiled(*inputs)

    ratios: list[float] = []
    for number in range(2 * rounds):  # before and behind the other in turn
        watch = number % 2 == 0
        times = {}
        for watched in (watch, not watch):
            if watched:
                with lampwork.profile():
                    times[watched] = seconds_of(sample)[0]
            else:
                times[watched] = seconds_of(sample)[0]
        ratios.append(times[True] / times[False])
    with lampwork.profile() as p:
        sample()
    low, middle, high = statistics.quantiles(ratios, n=4)
    share = sum(row.seconds for row in p.rows) / p.wall
    return f"profiled {middle:.4f} ({low:.4f} to {high:.4f})  sum {share:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=["bert"])
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    for name in given.networks:
        network = load(name)
        with torch.no_grad():
            print(f"{name}: {reported(network.fn, network.inputs)}", flush=True)
            print(
                f"{name}: {profiled(lampwork.compile(network.fn), network.inputs, given.rounds)}", flush=True
            )


if __name__ == "__main__":
    main()
