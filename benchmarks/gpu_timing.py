"""How long calls take on a GPU, and on the host that makes them."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import lampwork

CYCLES_PER_US = 2000  # of a GPU, roughly: how long it is kept busy while calls are enqueued behind
CALL_US = 60  # what the slowest compiler needs to enqueue a call

Callee = Callable[..., Any]

COMPILERS: dict[str, Callable[[Callee], Callee]] = {
    "eager": lambda fn: fn,
    "ours": lampwork.compile,
    "ours reduce": lambda fn: lampwork.compile(fn, mode="reduce-overhead"),
    "ours tuned": lambda fn: lampwork.compile(fn, mode="max-autotune-no-cudagraphs"),
    "ours tuned, graphs": lambda fn: lampwork.compile(fn, mode="max-autotune"),
    "default": lambda fn: torch.compile(fn),
    "reduce-overhead": lambda fn: torch.compile(fn, mode="reduce-overhead"),
    "max-autotune": lambda fn: torch.compile(fn, mode="max-autotune"),
}
PEERS = ("default", "reduce-overhead", "max-autotune")


def forget() -> None:
    """Drop what torch.compile holds, so that its limits of versions do not matter, and unused memory."""
    importlib.import_module("torch._dynamo").reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Clock:
    """Times calls on one device; milliseconds, medians over samples."""

    def __init__(self, device: str, samples: int = 9) -> None:
        self.on_gpu = device == "cuda"
        self.samples = samples

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, fn: Callable[[], Any]) -> tuple[float, Any]:
        """(wall seconds of one call and the work that it starts, its result)."""
        self.synchronize()
        start = time.perf_counter()
        result = fn()
        self.synchronize()
        return time.perf_counter() - start, result

    def device_ms(self, fn: Callee, inputs: Sequence[tuple[Any, ...]], calls: int = 0) -> float:
        """Of a call, on the device alone: calls queue up behind a kernel that waits, so that the host is always ahead.

        inputs: used in turn, so that none is found in a cache. calls: of a sample; 0: as many as take some
        milliseconds.
        """
        for args in inputs:
            fn(*args)
        once = max(self.seconds(lambda: fn(*inputs[0]))[0] * 1e3, 1e-3)
        calls = calls or max(3, min(40, int(4 / once)))
        return statistics.median(self._sample(fn, inputs, calls) for _ in range(self.samples))

    def _sample(self, fn: Callee, inputs: Sequence[tuple[Any, ...]], calls: int) -> float:
        def loop() -> None:
            for i in range(calls):
                fn(*inputs[i % len(inputs)])

        if not self.on_gpu:
            return self.seconds(loop)[0] / calls * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(calls * CALL_US * CYCLES_PER_US)
        begin.record()
        loop()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / calls

    def wall_ms(self, fn: Callee, args: tuple[Any, ...], seconds: float = 0.15) -> float:
        """Of a call in a loop, with one synchronization at its end: what the slower of host and device takes."""
        calls = max(2, min(200, int(seconds / 3 / max(self.seconds(lambda: fn(*args))[0], 1e-6))))

        def loop() -> None:
            for _ in range(calls):
                fn(*args)

        loop()
        return statistics.median(self.seconds(loop)[0] for _ in range(3)) / calls * 1e3

    def enqueue_us(self, fn: Callee, args: tuple[Any, ...], calls: int = 50) -> float:
        """Microseconds that the host takes for a call, with no wait for the device."""
        times: list[float] = []
        for _ in range(self.samples):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                fn(*args)
            times.append((time.perf_counter() - start) / calls * 1e6)
        self.synchronize()
        return statistics.median(times)

    def latency_us(self, fn: Callee, args: tuple[Any, ...], calls: int = 50) -> float:
        """Microseconds from a call to its result on the device."""
        return statistics.median(self.seconds(lambda: fn(*args))[0] for _ in range(calls)) * 1e6
