"""What open sizes cost: networks compiled for all batch sizes (and lengths) against the same compiled for one.

    python benchmarks/dynamic.py [--only bert mlp] [--seconds 2] [--threads 1] [--json FILE]

Both run in one process, turn about, so that they meet the same neighbours and clock. Printed are the lower deciles of
the process's own time in microseconds, and their ratio. The dynamic one has seen other sizes first, as in use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lampwork
from lampwork.bench import models

Inputs = Callable[[int], tuple[Tensor, ...]]
"""The inputs of a network for a batch size."""


def _images(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 224, 224),)


# Name in bench.models -> its inputs, the batch size measured, another one.
NETWORKS: dict[str, tuple[Inputs, int, int]] = {
    "gelu_chain": (lambda n: (torch.randn(n, 1024), torch.randn(n, 1024)), 1024, 100),
    "masked_softmax": (lambda n: (torch.randn(n, 256, 256), torch.randn(256, 256)), 12, 5),
    "residual_layer_norm": (lambda n: (torch.randn(n, 768), torch.randn(n, 768)), 512, 100),
    "mlp": (lambda n: (torch.randn(n, 64),), 8, 5),
    "alexnet": (_images, 4, 2),
    "resnet50": (_images, 4, 2),
    "vit": (_images, 4, 2),
    "bert": (lambda n: (torch.randint(0, 30522, (n, 32 * n)),), 4, 2),  # the length is open too
    "lstm": (lambda n: (torch.randn(n, 64, 256),), 4, 3),
}


def lower_deciles(
    first: Callable[..., Any], second: Callable[..., Any], inputs: Sequence[Tensor], seconds: float
) -> tuple[float, float]:
    """Microseconds of a call of each, of many turns."""
    begin = time.process_time()
    first(*inputs)
    repeat = max(1, int(0.002 / max(time.process_time() - begin, 1e-7)))
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for function, spent in zip((first, second), times, strict=True):
            begin = time.process_time()
            for _ in range(repeat):
                function(*inputs)
            spent.append((time.process_time() - begin) / repeat * 1e6)
    return statistics.quantiles(times[0], n=10)[0], statistics.quantiles(times[1], n=10)[0]


def measure(name: str, seconds: float) -> dict[str, Any]:
    inputs_for, batch, other = NETWORKS[name]
    fn = models.load(name).fn
    static, dynamic = lampwork.compile(fn, dynamic=False), lampwork.compile(fn)
    inputs = inputs_for(batch)
    static(*inputs)
    dynamic(*inputs_for(other))
    dynamic(*inputs)
    lampwork.reset_stats()
    dynamic(*inputs_for(batch + 1))
    if lampwork.stats()["regions"]:
        raise RuntimeError(f"{name} was compiled for a third batch size")
    one, all_sizes = lower_deciles(static, dynamic, inputs, seconds)
    return {"name": name, "static_us": one, "dynamic_us": all_sizes, "ratio": all_sizes / one}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for name in options.only:
            row = measure(name, options.seconds)
            rows.append(row)
            print(
                f"{name:20s} one size {row['static_us']:10.1f} us   all {row['dynamic_us']:10.1f} us   "
                f"x {row['ratio']:.3f}",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
