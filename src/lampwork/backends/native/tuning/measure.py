"""Several functions that do the same, timed against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

_SAMPLE = 1e-4
"""Seconds that a sample takes at least: shorter ones measure the clock."""
_ROUNDS = 25
_SPENT = 0.5
"""Seconds after which rounds end, if there were some."""


def measure(runs: Mapping[str, Callable[[], object]], kept: str) -> dict[str, float]:
    """Seconds of a call of each, by name: the first quartile of its samples.

    They take turns, so that what else the machine does, and what the one before left in the caches, is the same for
    all. Whatever is far behind after a few rounds takes part no longer, and is not in the result, except
    `kept`.
    """
    repeats: dict[str, int] = {}
    for name, run in runs.items():
        run()  # packs what is constant
        start = time.perf_counter()
        run()
        repeats[name] = max(1, min(1000, int(_SAMPLE / max(time.perf_counter() - start, 1e-7))))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    began = time.perf_counter()
    for number in range(_ROUNDS):
        for name in list(samples):
            run, count = runs[name], repeats[name]
            start = time.perf_counter()
            for _ in range(count):
                run()
            samples[name].append((time.perf_counter() - start) / count)
        if number in (2, 6):
            best = min(map(min, samples.values()))
            limit = (1.5 - 0.05 * number) * best
            samples = {name: taken for name, taken in samples.items() if name == kept or min(taken) < limit}
        if number >= 6 and time.perf_counter() - began > _SPENT:
            break
    return {name: sorted(taken)[len(taken) // 4] for name, taken in samples.items()}
