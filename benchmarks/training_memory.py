"""What a training step takes in memory besides parameters, gradients and the states of the optimizer.

    python benchmarks/training_memory.py [bert resnet50 ...] [--budgets 1 0.5 ...]

Each network of `python -m lampwork.bench train` runs in children of its own, forked after everything is imported:
eager, and compiled with each `memory_budget`. A child makes steps until nothing more is compiled, gives back what
nobody holds, and makes two more. Printed are MB of resident memory, and milliseconds:

    rest    between steps: what was there before the network was built is left out
    step    the most during a step, above that: activations, and what is computed of them
    peak    both
    ms      a step, one thread, of the second (of one run alone: only a hint)
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from memory import forget_peak, in_child, resident, settle

import lampwork
from lampwork.bench.training.measure import Step
from lampwork.bench.training.networks import load
from lampwork.runtime import trim_memory

LARGE = ("bert", "gpt2", "vit_s", "llama", "resnet50", "mobilenet_v3", "alexnet")


def measured(name: str, budget: float | None) -> dict[str, float]:
    """rest, step, peak and ms, of a network that is built here. budget: None is eager."""
    settle()
    empty = resident("VmRSS")
    training = load(name)
    loss = training.loss
    compiled = loss if budget is None else lampwork.compile(loss, options={"memory_budget": budget})
    step = Step(compiled, training)
    for _ in range(3):
        step()
    settle()
    trim_memory()
    rest = resident("VmRSS")
    forget_peak()
    step()
    peak = resident("VmHWM")
    start = time.perf_counter()
    step()
    ms = (time.perf_counter() - start) * 1e3
    return {"rest": rest - empty, "step": peak - rest, "peak": peak - empty, "ms": ms}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=LARGE)
    parser.add_argument("--budgets", nargs="+", type=float, default=[1.0, 0.5])
    given = parser.parse_args()
    torch.set_num_threads(1)
    # What every compilation needs is there before anything is measured.
    warm = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    lampwork.compile(warm)(torch.ones(256, 64)).sum().backward()
    load("bert")
    print(
        f"{'':14} {'way':>6} {'rest':>7} {'step':>7} {'peak':>7} {'ms':>7} {'step/eager':>10} {'peak/eager':>10}"
    )
    for name in given.networks:
        eager = in_child(partial(measured, name, None))
        for budget in (None, *given.budgets):
            row = eager if budget is None else in_child(partial(measured, name, budget))
            way = "eager" if budget is None else str(budget)
            numbers = " ".join(f"{row[key]:7.0f}" for key in ("rest", "step", "peak", "ms"))
            print(
                f"{name:14} {way:>6} {numbers} {row['step'] / eager['step']:10.2f} {row['peak'] / eager['peak']:10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
