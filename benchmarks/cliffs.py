"""Programs that change something on every call: how many times as fast as eager they are.

    python benchmarks/cliffs.py [NAME ...]

Eager and compiled calls take turns; printed are the median ratio and the best microseconds a call of each.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import lampwork

ROUNDS, CALLS, WARM_UP = 9, 30, 8
X = torch.randn(8, 64)


class Counter(nn.Module):
    """A step counter, which the graph reads if `reads`."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
        self.step = 0
        self.reads = reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        y = self.layers(x).relu()
        return y * self.step / (1 + self.step**0.5) if self.reads else y


class State(nn.Module):
    """A tensor on the module, another one after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.h = torch.zeros(8, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x
        return self.h.sin().cos()


def loop(x: torch.Tensor) -> torch.Tensor:
    n = 0
    while x.sum() < 1e9:
        x = x * 1.01
        n += 1
    return x * n


def raising(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if y.shape[0] == 8:
        raise ValueError("eight rows")
    return y


def quiet(fn: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """Calls without the exceptions that they end in."""

    def call(x: torch.Tensor) -> Any:
        try:
            return fn(x)
        except ValueError:
            return None

    return call


def cases() -> dict[str, tuple[Callable[..., Any], Callable[..., Any], torch.Tensor, int]]:
    """By name: eager, compiled, the argument, calls a round."""
    return {
        "counter": (Counter(), lampwork.compile(Counter()), X, CALLS),
        "counter in arithmetic": (Counter(True), lampwork.compile(Counter(True)), X, CALLS),
        "tensor state": (State(), lampwork.compile(State()), X, CALLS),
        "while with counter": (loop, lampwork.compile(loop), torch.ones(100), 1),
        "raising": (quiet(raising), quiet(lampwork.compile(raising)), X, CALLS),
    }


def seconds(fn: Callable[..., Any], x: torch.Tensor, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        fn(x)
    return (time.perf_counter() - start) / calls


def main() -> None:
    warnings.simplefilter("ignore")
    with torch.no_grad():
        for name, (eager, compiled, x, calls) in cases().items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            for fn in (eager, compiled):
                seconds(fn, x, WARM_UP)
            pairs = [(seconds(eager, x, calls), seconds(compiled, x, calls)) for _ in range(ROUNDS)]
            ratio = statistics.median(a / b for a, b in pairs)
            best = [min(column) * 1e6 for column in zip(*pairs, strict=True)]
            print(f"{name:24} {ratio:6.2f} x   eager {best[0]:9.1f} us   compiled {best[1]:9.1f} us")


if __name__ == "__main__":
    main()
