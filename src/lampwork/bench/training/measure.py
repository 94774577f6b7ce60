"""Steps of training, measured. Run as `python -m lampwork.bench.training.measure alone NAME COMPILER THREADS` or
`... together NAME THREADS STEPS SECONDS COMPILER ...`, each in a process of its own.

Alone: what only a process with one compiler tells, its first steps and its peak memory. Together: the compilers take
turns at their steps, from the same weights on the same data, and their losses are compared with eager's in float64.
"""

from __future__ import annotations

import copy
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

import lampwork
from lampwork.bench.compilers import COMPILERS, Job
from lampwork.bench.measure import BUDGET_SECONDS, errors, peak_of_runs
from lampwork.bench.summary import OURS
from lampwork.bench.training.networks import Loss, Training, load
from lampwork.records import record
from lampwork.timing import rounds

LEARNING_RATE = 1e-4
STEPS = 10  # whose losses are compared
TOLERANCE = 1e-5  # of the scale of a loss and its gradients, besides eager's own error
TRAINED = 1e-3  # of losses behind steps of AdamW: the first take the sign of gradients, be they only noise

OPTIMIZER_STEPS: Mapping[str, Callable[[Any], Any]] = {OURS: lampwork.compile}
"""How a compiler makes the step of an optimizer, where that is faster than eager's fused one. For AdamW of the MLP, one
thread, that takes 44 microseconds, Lampwork's 8 and torch.compile's 56, with `fused` or without."""


@record
class Alone:
    """Seconds of the first two steps, the decision to compile included; bytes of the resident high-water mark over
    three later ones; how many backwards of segments ran compiled in those, and how many ran the region again."""

    first_s: float = math.nan
    second_s: float = math.nan
    peak_bytes: int = 0
    compiled_backwards: int = 0
    eager_backwards: int = 0


@record
class Together:
    """The median seconds of a step; the loss after so many steps; whether the losses are right: root mean square
    distances from eager in float64, `error` at most 2 * `eager_error` + TRAINED of the scale. Of a function without an
    optimizer its gradients are compared too, with TOLERANCE. failure: of this compiler alone."""

    step_s: float = math.nan
    loss: float = math.nan
    error: float = math.nan
    eager_error: float = math.nan
    right: bool = False
    failure: str = ""


class Step:
    """A step: gradients are cleared, then forward, loss, backward and AdamW: eager's fused kernel, or what a compiler
    makes of it, see OPTIMIZER_STEPS."""

    def __init__(self, loss: Loss, training: Training) -> None:
        self.loss = loss
        self.training = training
        self.parameters = training.parameters
        trains = isinstance(training.loss, nn.Module)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=LEARNING_RATE, fused=True) if trains else None

    def __call__(self) -> Tensor:
        """The loss before the step."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.loss(*self.training.inputs)
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()

    def trace(self, steps: int) -> Tensor:
        """float64: the losses of so many steps, with the random numbers of a seed; without an optimizer also the
        gradients of the last."""
        torch.manual_seed(1)
        values = [self().double().reshape(1) for _ in range(steps)]
        if self.optimizer is None:
            values += [x.grad.double().reshape(-1) for x in self.parameters if x.grad is not None]
        return torch.cat(values)


def _compile(training: Training, compiler: str, threads: int) -> Step:
    step = Step(COMPILERS[compiler].compile(Job(training.loss, training.inputs, threads)), training)
    if step.optimizer is not None and compiler in OPTIMIZER_STEPS:
        step.optimizer.step = OPTIMIZER_STEPS[compiler](step.optimizer.step)
    return step


def alone(training: Training, compiler: str, threads: int) -> Alone:
    """Measure one compiler."""
    torch.set_num_threads(threads)
    start = time.perf_counter()
    step = _compile(training, compiler, threads)
    step()
    first = time.perf_counter()
    step()
    second = time.perf_counter()
    step()
    before = lampwork.stats()
    peak = peak_of_runs(step, ())
    ran = {name: int(count - before[name]) for name, count in lampwork.stats().items()}
    return Alone(first - start, second - first, peak, ran["compiled_backwards"], ran["eager_backwards"])


def together(
    trainings: Mapping[str, Training], threads: int, steps: int = STEPS, seconds: float = BUDGET_SECONDS
) -> dict[str, Together]:
    """Measure compilers, "eager" among them, side by side: `trainings` are equal copies, one for each.

    steps: how many losses are compared. seconds: of the turns they take, of which there are at least five.
    """
    torch.set_num_threads(threads)
    exact = _exact(trainings["eager"], steps)
    found: dict[str, Together] = {}
    ready: dict[str, Step] = {}
    traces: dict[str, Tensor] = {}
    for name, training in trainings.items():
        try:
            step = _compile(training, name, threads)
            traces[name] = step.trace(steps)
            ready[name] = step
        except Exception as error:  # noqa: BLE001  (of one compiler, whatever it is: the others are measured)
            found[name] = Together(failure=(str(error).strip().splitlines() or [repr(error)])[0][:200])
    times = dict(zip(ready, rounds([(step, ()) for step in ready.values()], seconds), strict=True))
    part = TOLERANCE if ready["eager"].optimizer is None else TRAINED
    for name, samples in times.items():
        error, eager_error, right = errors(traces[name], traces["eager"], exact, part)
        last = float(traces[name][steps - 1])
        found[name] = Together(statistics.median(samples), last, error, eager_error, right)
    return found


def _exact(training: Training, steps: int) -> Tensor:
    """What `Step.trace` gives in float64."""
    inputs = tuple(
        x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for x in training.inputs
    )
    loss: Any = training.loss
    if isinstance(loss, nn.Module):
        loss = copy.deepcopy(loss).double()
    wide = Training(training.name, loss, inputs)
    return Step(loss, wide).trace(steps)


def main(argv: Sequence[str]) -> None:
    kind, name, *rest = argv
    if kind == "alone":
        compiler, threads = rest
        print(json.dumps(asdict(alone(load(name), compiler, int(threads)))))
        return
    threads, steps, seconds, *compilers = rest
    trainings = {compiler: load(name) for compiler in compilers}
    found = together(trainings, int(threads), int(steps), float(seconds))
    print(json.dumps({compiler: asdict(each) for compiler, each in found.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
