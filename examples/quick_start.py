"""Quick start: compile a small network, compare with eager, count the calls."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import lampwork


def best_of(fn: Callable[[Tensor], Tensor], x: Tensor, calls: int = 200) -> float:
    """The quickest of some calls, in microseconds."""
    best = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        fn(x)
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10)).eval()
    x = torch.randn(8, 64)

    compiled = lampwork.compile(model)  # nothing is compiled yet
    with torch.no_grad():
        start = time.perf_counter()
        compiled(x)  # captures, compiles, runs
        print(f"first call {time.perf_counter() - start:.2f} s")
        print(f"largest difference from eager: {(compiled(x) - model(x)).abs().max().item():.1e}")
        eager, ours = best_of(model, x), best_of(compiled, x)
    print(f"eager {eager:.1f} us, compiled {ours:.1f} us: {eager / ours:.1f}x")

    print(compiled.stages.summary())
    print({name: count for name, count in lampwork.stats().items() if name.endswith("_calls")})


if __name__ == "__main__":
    main()
