"""The demo: AlexNet at batch 32 and BERT-base, in eager PyTorch, Lampwork and torch.compile.

Says what it is doing, then prints a table of first-call time, run time and speed-up, and how the graph became fused
kernels. About two minutes, most of them torch.compile's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

import lampwork
from lampwork.bench.measure import accuracy, compare, tensor_of
from lampwork.bench.models import load

START = time.perf_counter()
SECONDS = 3.0  # of each comparison
TITLES = {"alexnet_32": "AlexNet, batch 32", "bert": "BERT-base, 128 tokens"}
QUICK = {"mlp": "MLP 64-128-128-10, batch 8", "alexnet": "AlexNet, batch 1"}


def now(text: str) -> None:
    """Say what comes next, at once: compilers may take a minute over it."""
    print(f"[{time.perf_counter() - START:4.0f} s] {text}", flush=True)


def first_call(
    make: Callable[[], Callable[..., Any]], inputs: tuple[Any, ...]
) -> tuple[float, Any, torch.Tensor]:
    """(seconds, compiled callable, its first output)."""
    start = time.perf_counter()
    fn = make()
    output = tensor_of(fn(*inputs)).clone()
    return time.perf_counter() - start, fn, output


def show(name: str, title: str, peers: bool, budget: float) -> None:
    now(f"{title}: eager")
    workload = load(name)
    fn, inputs = workload.fn, workload.inputs
    seconds, _, _ = first_call(lambda: fn, inputs)
    eager_seconds, _, _ = compare(fn, fn, inputs, budget)
    rows = [f"  {'eager':14} {seconds:10.2f} s {eager_seconds * 1e3:9.2f} ms {'1.00x':>9}"]
    compilers: dict[str, Callable[[], Any]] = {"lampwork": lambda: lampwork.compile(fn)}
    if peers:
        compilers["torch.compile"] = lambda: torch.compile(fn)
    summary = ""
    for compiler, make in compilers.items():
        now(f"{title}: {compiler} compiles")
        seconds, compiled, output = first_call(make, inputs)
        now(f"{title}: {compiler} and eager in turn")
        _, run, speedup = compare(fn, compiled, inputs, budget)
        error, eager_error, right = accuracy(workload, output)
        verdict = f"{error:.1e} ({eager_error:.1e}){'' if right else '  WRONG'}"
        rows.append(f"  {compiler:14} {seconds:10.2f} s {run * 1e3:9.2f} ms {speedup:8.2f}x   {verdict}")
        if compiler == "lampwork":
            summary = compiled.stages.summary()
    print(f"\n{title}")
    print(f"  {'':14} {'first call':>12} {'run':>12} {'speed-up':>9}   error vs float64 (eager's)")
    print("\n".join(rows))
    print("\n  " + summary.replace("\n", "\n  ") + "\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-peers", action="store_true", help="leave torch.compile out")
    parser.add_argument(
        "--quick", action="store_true", help="small workloads, few rounds: some seconds in all"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, lampwork {lampwork.__version__}, {options.threads} threads, float32")
    with torch.no_grad():
        for name, title in (QUICK if options.quick else TITLES).items():
            show(name, title, not options.no_peers, 0.5 if options.quick else SECONDS)
    print("Counters:", lampwork.stats())


if __name__ == "__main__":
    main()
