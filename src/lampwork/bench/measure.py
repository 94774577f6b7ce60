"""One measurement: a workload under one compiler, in a process of its own. Run as
`python -m lampwork.bench.measure MODEL COMPILER THREADS [DTYPE]`.

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
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork.bench.compilers import COMPILERS, Job
from lampwork.bench.models import load
from lampwork.bench.workloads.workload import Precision, Workload
from lampwork.records import record
from lampwork.timing import resident_peak, rounds

INT8_ERROR = 0.1  # of the scale of the values
BUDGET_SECONDS = 4.0  # of one interleaved comparison


@record
class Result:
    """Seconds, bytes and errors of one workload under one compiler.

    `speedup`: median over rounds of eager seconds / compiled seconds in that round. `error`, `eager_error`: root mean
    square distance from eager in float64, with the weights and inputs of `dtype`, in which eager computes too. `right`:
    error <= 2 * eager_error + 1e-5 * scale of the values, the rule of torch's own accuracy checks; for int8, where
    eager computes in float32, a tenth of the scale. `peak_bytes`: resident high-water mark over three runs.
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
    dtype: Precision = "f32"


def tensor_of(output: Any) -> Tensor:
    """The tensor of a workload's output (the first, if there are several)."""
    while not isinstance(output, Tensor):
        output = output[0]
    return output


def measure(model: str, compiler: str, threads: int, dtype: Precision = "f32") -> Result:
    torch.set_num_threads(threads)
    workload = load(model, dtype=dtype)
    chosen = COMPILERS[compiler]
    given = workload.to(torch.float32) if chosen.by_hint and dtype != "f32" else workload
    with torch.no_grad():
        # The clock starts with the decision to compile; imports a compiler makes by itself are part of its first call.
        start = time.perf_counter()
        compiled = chosen.compile(Job(given.fn, given.inputs, threads, dtype))
        output = tensor_of(compiled(*given.inputs)).clone()
        first = time.perf_counter() - start
        peak = peak_of_runs(compiled, given.inputs)
        eager_s, run_s, speedup = compare(
            workload.fn, compiled, workload.inputs, compiled_inputs=given.inputs
        )
        error, eager_error, right = accuracy(workload, output, INT8_ERROR if dtype == "int8" else 1e-5)
    return Result(
        model, compiler, threads, first, run_s, eager_s, speedup, error, eager_error, right, peak, dtype=dtype
    )


def compare(
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    inputs: tuple[Any, ...],
    budget: float = BUDGET_SECONDS,
    compiled_inputs: tuple[Any, ...] | None = None,
) -> tuple[float, float, float]:
    """(eager seconds, compiled seconds, speed-up) per call: medians over rounds that alternate between the two.

    compiled_inputs: those of `compiled`, where they are not eager's.
    budget: seconds after which no further round starts (at least five are made).
    """
    calls = ((eager, inputs), (compiled, inputs if compiled_inputs is None else compiled_inputs))
    for fn, args in calls:
        for _ in range(3):
            fn(*args)
    eager_times, times = rounds(calls, budget)
    ratio = statistics.median(e / c for e, c in zip(eager_times, times, strict=True))
    return statistics.median(eager_times), statistics.median(times), ratio


def accuracy(workload: Workload, output: Tensor, part: float = 1e-5) -> tuple[float, float, bool]:
    """(error, eager's error, right) against eager in float64 with the same weights and inputs; `part`: of the scale of
    the values, which the error may have besides eager's."""
    eager = tensor_of(workload.fn(*workload.inputs))
    wide = workload.fn
    if isinstance(wide, nn.Module):
        wide = copy.deepcopy(wide).double()
    inputs = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in workload.inputs]
    return errors(output, eager, tensor_of(wide(*inputs)), part)


def errors(output: Tensor, eager: Tensor, exact: Tensor, part: float = 1e-5) -> tuple[float, float, bool]:
    """(error, eager's error, right) of two results against eager's in float64."""
    error, eager_error = (float((x.double() - exact).square().mean().sqrt()) for x in (output, eager))
    scale = float(exact.double().square().mean().sqrt())
    return error, eager_error, error <= 2 * eager_error + part * max(scale, 1e-6)


def peak_of_runs(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> int:
    """The resident high-water mark of three calls, in bytes (Linux: /proc)."""

    def run() -> None:
        for _ in range(3):
            fn(*inputs)

    return resident_peak(run)


def main() -> None:
    model, compiler, threads = sys.argv[1:4]
    dtype = cast(Precision, sys.argv[4] if len(sys.argv) > 4 else "f32")
    print(json.dumps(asdict(measure(model, compiler, int(threads), dtype))))


if __name__ == "__main__":
    main()
