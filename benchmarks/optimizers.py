"""AdamW over the parameters of networks: eager (single tensors, foreach, fused) and lampwork.compile(optimizer.step).

    python benchmarks/optimizers.py [--threads 1] [--steps 7] [--device cpu] [mlp | bert]

Steps of all take turns; medians. On a card the time is that of the device, by events, and "host" is when the caller may
go on; there torch's default is foreach. GB/s counts each of parameter, gradient and both states read once, and all but
the gradient written once: 28 bytes a parameter. The last line is what a copy of as many floats reads and writes.
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


def adamw(
    network: str, device: str, *, foreach: bool | None = None, fused: bool | None = None
) -> optim.AdamW:
    params = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes_of(network)]
    for param in params:
        param.grad = torch.randn_like(param)
    return optim.AdamW(params, lr=1e-4, foreach=foreach, fused=fused)


def timed_here(step: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, twice."""
    start = time.perf_counter()
    step()
    taken = time.perf_counter() - start
    return taken, taken


def timed_on_card(step: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call on the device and on the host."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000)  # so that the host is ahead
    begin.record()
    start = time.perf_counter()
    step()
    host = time.perf_counter() - start
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, host


def medians(
    steps: dict[str, Callable[[], object]], count: int, timed: Callable[..., tuple[float, float]]
) -> dict[str, tuple[float, float]]:
    """Seconds a call, and of the host, in turns."""
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(count):
        for name, step in steps.items():
            times[name].append(timed(step))
    return {
        name: (statistics.median(a for a, _ in each), statistics.median(b for _, b in each))
        for name, each in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="?", choices=["mlp", "bert"], default="bert")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    on_card = given.device == "cuda"
    ours, ours_fused = adamw(given.network, given.device), adamw(given.network, given.device, fused=True)
    count = sum(torch.Size(shape).numel() for shape in shapes_of(given.network))
    source, target = torch.randn(count, device=given.device), torch.empty(count, device=given.device)
    steps: dict[str, Callable[[], object]] = {
        "eager": adamw(given.network, given.device, foreach=False).step,
        "eager, foreach": adamw(given.network, given.device, foreach=True).step,
        "eager, fused": adamw(given.network, given.device, fused=True).step,
        "ours": lampwork.compile(ours.step),
        "ours, fused": lampwork.compile(ours_fused.step),
        "copy": lambda: target.copy_(source),
    }
    found = medians(steps, given.steps, timed_on_card if on_card else timed_here)
    where = torch.cuda.get_device_name() if on_card else f"threads: {given.threads}"
    print(f"{given.network}: {count} parameters, {where}, torch {torch.__version__}")
    copied = 8 * count / found["copy"][0] / 1e9
    for name, (seconds, host) in found.items():
        rate = (8 if name == "copy" else BYTES) * count / seconds / 1e9
        told = f"{host * 1e6:10.0f} us of the host" if on_card else ""
        print(f"{name:16}{seconds * 1e3:10.3f} ms{rate:8.1f} GB/s{rate / copied:8.0%} of the copy{told}")


if __name__ == "__main__":
    main()
