"""Time on a card, by events, while the host is ahead: what a call takes the host does not count."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from lampwork import pristine

_ROUNDS = 21
_SPENT = 0.4
"""Seconds after which rounds end, if there were some."""
_AHEAD = 2e-4
"""Seconds that the card is kept busy for each call that is about to come."""
_CLOCK = 2e9
"""Cycles of a card in a second, at most."""


class Stopwatch(Protocol):
    """A device that works through what it is given, in order, and notes when."""

    def hold(self, calls: int) -> None:
        """Keep it busy for as long as the host takes for so many calls."""
        ...

    def flush(self) -> None:
        """What comes next finds none of its memory in a cache."""
        ...

    def mark(self) -> Any:
        """Note when it comes to this point."""
        ...

    def wait(self) -> None:
        """Until it has done everything."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks that it has come to."""
        ...


class CudaStopwatch:
    """A CUDA device's current stream."""

    def __init__(self, index: int) -> None:
        self._index = index
        cuda: Any = torch.cuda
        cached = cuda.get_device_properties(index).L2_cache_size
        self._cuda = cuda
        self._other = pristine.empty(2 * cached, dtype=torch.uint8, device=torch.device("cuda", index))

    def hold(self, calls: int) -> None:
        with self._cuda.device(self._index):
            self._cuda._sleep(int(_AHEAD * calls * _CLOCK))

    def flush(self) -> None:
        self._other.zero_()

    def mark(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._index))
        return event

    def wait(self) -> None:
        self._cuda.synchronize(self._index)

    def seconds(self, start: Any, end: Any) -> float:
        return start.elapsed_time(end) * 1e-3


def measure_on(watch: Stopwatch, runs: Mapping[str, Callable[[], object]], kept: str) -> dict[str, float]:
    """Seconds of a call of each on the device, by name: medians.

    They take turns. Whatever is far behind after a few rounds takes part no longer, and is not in the result, except
    `kept`.
    """
    for run in runs.values():
        run()  # loads code, fills pools of memory
        run()
    samples: dict[str, list[float]] = {name: [] for name in runs}
    began = time.perf_counter()
    for number in range(_ROUNDS):
        watch.hold(len(samples))
        marks: dict[str, tuple[Any, Any]] = {}
        for name in samples:
            watch.flush()
            start = watch.mark()
            runs[name]()
            marks[name] = (start, watch.mark())
        watch.wait()
        for name, pair in marks.items():
            samples[name].append(watch.seconds(*pair))
        if number in (2, 6):
            best = min(map(_median, samples.values()))
            limit = (1.6 - 0.05 * number) * best
            samples = {
                name: taken for name, taken in samples.items() if name == kept or _median(taken) < limit
            }
        if number >= 6 and time.perf_counter() - began > _SPENT:
            break
    return {name: _median(taken) for name, taken in samples.items()}


def _median(taken: list[float]) -> float:
    return sorted(taken)[len(taken) // 2]
