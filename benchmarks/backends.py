"""BERT-base and ResNet-50 in each backend: seconds until the first answer, and run times beside eager.

    OMP_NUM_THREADS=1 python benchmarks/backends.py bert resnet50

All backends are timed in one process, in turns; a figure is the median of the calls.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import lampwork
from lampwork.backends.registry import list_backends
from lampwork.bench.models import load

ORDER = ("eager", "native", "onnxruntime", "openvino", "inductor")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["bert", "resnet50"])
    parser.add_argument("--backends", default=",".join(b for b in ORDER if b in list_backends()))
    parser.add_argument("--calls", type=int, default=30)
    options = parser.parse_args()
    print("| model | backend | first call, s | ms | times as fast as eager |\n|---|---|---|---|---|")
    for name in options.models:
        for line in measure(name, options.backends.split(","), options.calls):
            print(line)


def measure(name: str, backends: list[str], calls: int) -> list[str]:
    work = load(name)
    runs: dict[str, Any] = {"PyTorch": work.fn}
    first: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    with torch.no_grad():
        for backend in backends:
            compiled = lampwork.compile(work.fn, backend=backend, options={"strict": True})
            start = time.perf_counter()
            compiled(*work.inputs)
            first[backend] = time.perf_counter() - start
            runs[backend] = compiled
        for _ in range(calls):
            for key, run in runs.items():
                start = time.perf_counter()
                run(*work.inputs)
                times.setdefault(key, []).append(time.perf_counter() - start)
    median = {key: statistics.median(found) for key, found in times.items()}
    return [
        f"| {name} | {key} | {first[key]:.2f} | {value * 1e3:.1f} | {median['PyTorch'] / value:.2f} |"
        if key in first
        else f"| {name} | {key} |  | {value * 1e3:.1f} | 1 |"
        for key, value in median.items()
    ]


if __name__ == "__main__":
    main()
