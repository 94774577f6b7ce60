"""Matrix products: Lampwork against PyTorch (MKL) and oneDNN's packed linear, interleaved in one process.

    python benchmarks/gemm.py [--threads 1 2] [--seconds 0.3] [--only bert] [--json FILE]

Each round runs every contender once, so that they meet the same neighbours and clock; printed is the best and the
median of the rounds, in GFLOP/s. "cold" rows go round so many weights that none is in the cache when it is used, as in
a network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional

import lampwork

COLD_BYTES = 120_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """batch 0: a linear layer of a constant weight; otherwise that many products of two inputs."""

    name: str
    m: int
    k: int
    n: int
    batch: int = 0
    transposed: bool = False


SHAPES = (
    Shape("bert attention out", 128, 768, 768),
    Shape("bert mlp up", 128, 768, 3072),
    Shape("bert mlp down", 128, 3072, 768),
    Shape("gpt2 qkv", 128, 768, 2304),
    Shape("gpt2 head", 128, 768, 50257),
    Shape("vit attention out", 197, 768, 768),
    Shape("bert 512 mlp up", 512, 768, 3072),
    Shape("alexnet fc6, batch 1", 1, 9216, 4096),
    Shape("alexnet fc7, batch 1", 1, 4096, 4096),
    Shape("alexnet fc8, batch 1", 1, 4096, 1000),
    Shape("alexnet fc6, batch 32", 32, 9216, 4096),
    Shape("mlp 64-128, batch 8", 8, 64, 128),
    Shape("mlp 128-10, batch 8", 8, 128, 10),
    Shape("attention scores 128", 128, 64, 128, 12, True),
    Shape("attention values 128", 128, 128, 64, 12),
    Shape("attention scores 197", 197, 64, 197, 12, True),
    Shape("attention values 197", 197, 197, 64, 12),
)


@dataclass(frozen=True, slots=True)
class Result:
    shape: str
    threads: int
    cold: bool
    contender: str
    best_gflops: float
    median_gflops: float
    best_us: float


Contender = list[Callable[[], object]]
"""The same work on as many sets of operands as it takes."""


def linears(shape: Shape, copies: int) -> dict[str, Contender]:
    x = torch.randn(shape.m, shape.k)
    layers = [torch.nn.Linear(shape.k, shape.n).requires_grad_(False) for _ in range(copies)]
    compiled = [lampwork.compile(layer) for layer in layers]
    packed = [torch.ops.mkldnn._reorder_linear_weight(layer.weight, shape.m) for layer in layers]
    call = torch.ops.mkldnn._linear_pointwise
    return {
        "lampwork": [lambda f=f: f(x) for f in compiled],
        "oneDNN": [
            lambda w=w, b=layer.bias: call(x, w, b, "none", [], "")
            for w, layer in zip(packed, layers, strict=True)
        ],
        "eager": [lambda layer=layer: functional.linear(x, layer.weight, layer.bias) for layer in layers],
    }


def products(shape: Shape) -> dict[str, Contender]:
    left = torch.randn(1, shape.batch, shape.m, shape.k)
    right = torch.randn(1, shape.batch, shape.k, shape.n)
    if shape.transposed:  # heads as they lie after a projection
        left = torch.randn(1, shape.m, shape.batch, shape.k).transpose(1, 2)
        right = torch.randn(1, shape.n, shape.batch, shape.k).transpose(1, 2).transpose(2, 3)
    compiled = lampwork.compile(lambda a, b: torch.matmul(a, b))
    return {"lampwork": [lambda: compiled(left, right)], "eager": [lambda: torch.matmul(left, right)]}


def measure(contenders: dict[str, Contender], seconds: float) -> dict[str, list[float]]:
    """Seconds a call, one number a round, of each contender."""
    turns: dict[str, int] = {}
    for name, calls in contenders.items():
        for call in calls:
            call()
        start = time.perf_counter()
        calls[0]()
        turns[name] = max(1, int(0.002 / (time.perf_counter() - start) / len(calls)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds * len(contenders)
    while time.perf_counter() < end:
        for name, calls in contenders.items():
            start = time.perf_counter()
            for _ in range(turns[name]):
                for call in calls:
                    call()
            times[name].append((time.perf_counter() - start) / turns[name] / len(calls))
    return times


def run(shape: Shape, threads: int, cold: bool, seconds: float) -> list[Result]:
    copies = max(2, min(40, COLD_BYTES // (4 * shape.k * shape.n))) if cold else 1
    contenders = products(shape) if shape.batch else linears(shape, copies)
    operations = 2 * shape.m * shape.n * shape.k * max(1, shape.batch) / 1e9
    return [
        Result(
            shape.name,
            threads,
            cold,
            name,
            operations / min(times),
            operations / statistics.median(times),
            min(times) * 1e6,
        )
        for name, times in measure(contenders, seconds).items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.3, help="for each contender of each row")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    found: list[Result] = []
    with torch.no_grad():
        for threads in options.threads:
            torch.set_num_threads(threads)
            for shape in SHAPES:
                if options.only not in shape.name:
                    continue
                for cold in (False, True) if not shape.batch and shape.m >= 32 else (False,):
                    results = run(shape, threads, cold, options.seconds)
                    found += results
                    label = f"{shape.name}{', cold' if cold else ''}, {threads} thread{'s' * (threads > 1)}"
                    row = "   ".join(
                        f"{r.contender} {r.best_gflops:6.1f} ({r.median_gflops:6.1f}) {r.best_us:9.1f} us"
                        for r in results
                    )
                    print(f"{label:42} {row}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
