"""One measurement: a workload under one compiler, in a process of its own. Run as `python -m lampwork.bench.measure`.

The order matters: the first call comes before anything else has warmed up; peak memory is that of runs, not of
compiling (the kernel's high-water mark is reset in between); speed is measured interleaved with eager, so that a
noisy neighbour hurts both.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lampwork.bench.compilers import COMPILERS
from lampwork.bench.models import Workload, load
from lampwork.records import record

ROUNDS = 25
SAMPLE_SECONDS = 0.02  # a sample is as many calls as fill this
BUDGET_SECONDS = 4.0  # of one interleaved comparison


@record
class Result:
    """Seconds, bytes and errors of one workload under one compiler.

    `speedup`: median over rounds of eager seconds / compiled seconds in that round. `error`, `eager_error`: root mean
    square distance from eager in float64. `right`: error <= 2 * eager_error + 1e-5 * scale of the values, the
    rule of torch's own accuracy checks. `peak_bytes`: resident high-water mark over three runs.
    """

    model: str
    compiler: str
    threads: int
    first_call_s: float = math.nan
    run_s: float = math.nan
    eager_s: float = math.nan
    speedup: float = math.nan
    error: float = math.nan
    eager_error: float = math.nan
    right: bool = False
    peak_bytes: int = 0
    failure: str = ""


def tensor_of(output: Any) -> Tensor:
    """The tensor of a workload's output (the first, if there are several)."""
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def measure(model: str, compiler: str, threads: int) -> Result:
    torch.set_num_threads(threads)
    workload = load(model)
    with torch.no_grad():
        # The clock starts with the decision to compile; imports a compiler makes by itself are part of its first call.
        start = time.perf_counter()
        compiled = COMPILERS[compiler].make(workload.fn, workload.inputs, threads)
        output = tensor_of(compiled(*workload.inputs)).clone()
        first = time.perf_counter() - start
        peak = _peak_of_runs(compiled, workload.inputs)
        eager_s, run_s, speedup = compare(workload.fn, compiled, workload.inputs)
        error, eager_error, right = accuracy(workload, output)
    return Result(
        model, compiler, threads, first, run_s, eager_s, speedup, error, eager_error, right, peak_bytes=peak
    )


def compare(
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    inputs: tuple[Any, ...],
    budget: float = BUDGET_SECONDS,
) -> tuple[float, float, float]:
    """(eager seconds, compiled seconds, speed-up) per call: medians over rounds that alternate between the two.

    budget: seconds after which no further round starts (at least five are made).
    """
    for fn in (eager, compiled):
        for _ in range(3):
            fn(*inputs)
    counts = [max(1, math.ceil(SAMPLE_SECONDS / _sample(fn, inputs, 1))) for fn in (eager, compiled)]
    # The first estimate of a microsecond function is mostly timer; measure again with many calls.
    counts = [
        max(1, math.ceil(SAMPLE_SECONDS / _sample(fn, inputs, max(1, count // 4))))
        for fn, count in zip((eager, compiled), counts, strict=True)
    ]
    times: tuple[list[float], list[float]] = ([], [])
    deadline = time.perf_counter() + budget
    for done in range(ROUNDS):
        for fn, count, samples in zip((eager, compiled), counts, times, strict=True):
            samples.append(_sample(fn, inputs, count))
        if done >= 4 and time.perf_counter() > deadline:
            break
    ratio = statistics.median(e / c for e, c in zip(*times, strict=True))
    return statistics.median(times[0]), statistics.median(times[1]), ratio


def _sample(fn: Callable[..., Any], inputs: tuple[Any, ...], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        fn(*inputs)
    return (time.perf_counter() - start) / count


def accuracy(workload: Workload, output: Tensor) -> tuple[float, float, bool]:
    """(error, eager's error, right) against eager in float64."""
    eager = tensor_of(workload.fn(*workload.inputs))
    wide = workload.fn
    if isinstance(wide, nn.Module):
        wide = copy.deepcopy(wide).double()
    inputs = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in workload.inputs]
    return errors(output, eager, tensor_of(wide(*inputs)))


def errors(output: Tensor, eager: Tensor, exact: Tensor) -> tuple[float, float, bool]:
    """(error, eager's error, right) of two results against eager's in float64."""
    error, eager_error = (float((x.double() - exact).square().mean().sqrt()) for x in (output, eager))
    scale = float(exact.double().square().mean().sqrt())
    return error, eager_error, error <= 2 * eager_error + 1e-5 * max(scale, 1e-6)


def _peak_of_runs(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> int:
    """The resident high-water mark of three calls, in bytes (Linux: /proc)."""
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(3):
        fn(*inputs)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    model, compiler, threads = sys.argv[1:4]
    print(json.dumps(asdict(measure(model, compiler, int(threads)))))


if __name__ == "__main__":
    main()
