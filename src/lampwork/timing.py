"""How calls are timed against each other: in turn, in one process, so that a noisy neighbour hurts all alike; and how
much memory a process takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lampwork.standard import math

ROUNDS = 25
LEAST_ROUNDS = 5
SAMPLE_SECONDS = 0.02  # a sample is as many calls as fill this

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def _nothing() -> None:
    return None


def rounds(
    calls: Sequence[Call], budget: float, finish: Callable[[], object] = _nothing
) -> list[list[float]]:
    """Seconds of a call of each, in rounds that take a sample of each.

    Args:
        budget: seconds after which no further round starts; five are made whatever it says.
        finish: called at the end of a sample, to wait for work that goes on elsewhere.
    """
    counts = [max(1, math.ceil(SAMPLE_SECONDS / sample(call, 1, finish))) for call in calls]
    # The first estimate of a microsecond function is mostly timer; measure again with many calls.
    counts = [
        max(1, math.ceil(SAMPLE_SECONDS / sample(call, max(1, count // 4), finish)))
        for call, count in zip(calls, counts, strict=True)
    ]
    times: list[list[float]] = [[] for _ in calls]
    deadline = time.perf_counter() + budget
    for done in range(ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() > deadline:
            break
        for call, count, samples in zip(calls, counts, times, strict=True):
            samples.append(sample(call, count, finish))
    return times


def sample(call: Call, count: int, finish: Callable[[], object] = _nothing) -> float:
    """Seconds of a call, over `count` of them."""
    fn, arguments = call
    start = time.perf_counter()
    for _ in range(count):
        fn(*arguments)
    finish()
    return max((time.perf_counter() - start) / count, 1e-9)


def resident_bytes() -> int:
    """What of the process is in memory now; 0 where the system does not say (it is Linux's /proc)."""
    return _status("VmRSS")


def resident_peak(run: Callable[[], object]) -> int:
    """The most of the process that was in memory during `run()`; 0 where the system does not say."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        run()
        return 0
    reset.write_text("5")
    run()
    return _status("VmHWM")


def _status(name: str) -> int:
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
