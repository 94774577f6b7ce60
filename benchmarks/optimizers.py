"""AdamW over the parameters of networks: eager (single tensors, foreach, fused) and lampwork.compile(optimizer.step).

    python benchmarks/optimizers.py [--threads 1] [--steps 7] [mlp | bert]

Steps of all take turns; medians. GB/s counts each of parameter, gradient and both states read once, and all but the
gradient written once: 28 bytes a parameter. The last line is what a copy of as many floats reads and writes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn, optim

import lampwork

BYTES = 28  # a parameter


def shapes_of(network: str) -> list[tuple[int, ...]]:
    if network == "mlp":
        return [(128, 64), (128,), (128, 128), (128,), (10, 128), (10,)]
    attention = [(768, 768), (768,)] * 4
    layer = [*attention, (768,), (768,), (3072, 768), (3072,), (768, 3072), (768,), (768,), (768,)]
    return [(30522, 768), (512, 768), (2, 768), (768,), (768,), *layer * 12, (768, 768), (768,)]


def adamw(network: str, *, foreach: bool | None = None, fused: bool | None = None) -> optim.AdamW:
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes_of(network)]
    for param in params:
        param.grad = torch.randn_like(param)
    return optim.AdamW(params, lr=1e-4, foreach=foreach, fused=fused)


def medians(steps: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    """Seconds a call, in turns."""
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(count):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="?", choices=["mlp", "bert"], default="bert")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    ours = adamw(given.network)
    count = sum(torch.Size(shape).numel() for shape in shapes_of(given.network))
    source, target = torch.randn(count), torch.empty(count)
    steps: dict[str, Callable[[], object]] = {
        "eager": adamw(given.network).step,
        "eager, foreach": adamw(given.network, foreach=True).step,
        "eager, fused": adamw(given.network, fused=True).step,
        "ours": lampwork.compile(ours.step),
        "copy": lambda: target.copy_(source),
    }
    found = medians(steps, given.steps)
    print(f"{given.network}: {count} parameters, threads: {given.threads}")
    copied = 8 * count / found["copy"] / 1e9
    for name, seconds in found.items():
        rate = (8 if name == "copy" else BYTES) * count / seconds / 1e9
        print(f"{name:16}{seconds * 1e3:10.3f} ms{rate:8.1f} GB/s{rate / copied:8.0%} of the copy")


if __name__ == "__main__":
    main()
