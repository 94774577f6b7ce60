"""Steps over the parameters of networks: eager (single tensors, foreach, fused) and lampwork.compile(optimizer.step).

    python benchmarks/optimizers.py [--threads 1] [--steps 7] [--loop lion | adam] [mlp | resnet50 | bert]

Without --loop the optimizer is torch's AdamW; with it a class whose step is a loop over parameters, as one writes it.

Steps of all take turns; medians. GB/s counts each of parameter, gradient and states read once, and all but the
gradient written once: 28 bytes a parameter, 20 for Lion, which has one state. The last line is what a copy of as many
floats reads and writes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn, optim

import lampwork

BYTES = {None: 28, "adam": 28, "lion": 20}  # a parameter


class Loop(optim.Optimizer):
    """Lion or Adam, as one writes it."""

    def __init__(self, params: list[nn.Parameter], rule: str) -> None:
        super().__init__(params, {"lr": 1e-4, "weight_decay": 0.01})
        self.rule = getattr(self, rule)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                self.rule(param, param.grad, self.state[param], group["lr"], group["weight_decay"])

    def lion(self, param: Any, grad: Any, state: Any, lr: float, weight_decay: float) -> None:
        if not state:
            state["average"] = torch.zeros_like(param)
        average = state["average"]
        param.mul_(1 - lr * weight_decay)
        update = average.clone().mul_(0.9).add(grad, alpha=0.1).sign_()
        param.add_(update, alpha=-lr)
        average.mul_(0.99).add_(grad, alpha=0.01)

    def adam(self, param: Any, grad: Any, state: Any, lr: float, weight_decay: float) -> None:
        if not state:
            state["step"], state["first"], state["second"] = (
                0,
                torch.zeros_like(param),
                torch.zeros_like(param),
            )
        state["step"] += 1
        first, second = state["first"], state["second"]
        param.mul_(1 - lr * weight_decay)
        first.mul_(0.9).add_(grad, alpha=0.1)
        second.mul_(0.999).addcmul_(grad, grad, value=0.001)
        denom = (second.sqrt() / math.sqrt(1 - 0.999 ** state["step"])).add_(1e-8)
        param.addcdiv_(first, denom, value=-lr / (1 - 0.9 ** state["step"]))


def shapes_of(network: str) -> list[tuple[int, ...]]:
    if network == "mlp":
        return [(128, 64), (128,), (128, 128), (128,), (10, 128), (10,)]
    if network == "resnet50":
        return resnet50()
    attention = [(768, 768), (768,)] * 4
    layer = [*attention, (768,), (768,), (3072, 768), (3072,), (768, 3072), (768,), (768,), (768,)]
    return [(30522, 768), (512, 768), (2, 768), (768,), (768,), *layer * 12, (768, 768), (768,)]


def resnet50() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            kernels = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                kernels.append((4 * width, inputs, 1, 1))
            for kernel in kernels:
                shapes += [kernel, (kernel[0],), (kernel[0],)]
            inputs = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def parameters(network: str) -> list[nn.Parameter]:
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes_of(network)]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


def adamw(network: str, *, foreach: bool | None = None, fused: bool | None = None) -> optim.AdamW:
    return optim.AdamW(parameters(network), lr=1e-4, foreach=foreach, fused=fused)


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
    parser.add_argument("network", nargs="?", choices=["mlp", "resnet50", "bert"], default="bert")
    parser.add_argument("--loop", choices=["lion", "adam"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    count = sum(torch.Size(shape).numel() for shape in shapes_of(given.network))
    source, target = torch.randn(count), torch.empty(count)
    if given.loop:
        steps = {"eager": Loop(parameters(given.network), given.loop).step}
        ours = Loop(parameters(given.network), given.loop).step
    else:
        steps = {
            "eager": adamw(given.network).step,
            "eager, foreach": adamw(given.network, foreach=True).step,
            "eager, fused": adamw(given.network, fused=True).step,
        }
        ours = adamw(given.network).step
    steps |= {"ours": lampwork.compile(ours), "copy": lambda: target.copy_(source)}
    found = medians(steps, given.steps)
    print(f"{given.loop or 'adamw'}, {given.network}: {count} parameters, threads: {given.threads}")
    copied = 8 * count / found["copy"] / 1e9
    for name, seconds in found.items():
        rate = (8 if name == "copy" else BYTES[given.loop]) * count / seconds / 1e9
        print(f"{name:16}{seconds * 1e3:10.3f} ms{rate:8.1f} GB/s{rate / copied:8.0%} of the copy")


if __name__ == "__main__":
    main()
