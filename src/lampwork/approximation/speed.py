"""How fast models are when they are compiled, against each other."""

from __future__ import annotations

import statistics
import time
from typing import Any

from torch import nn

from lampwork import pristine
from lampwork.api import compile
from lampwork.standard import copy, math
from lampwork.swapping.difference import arguments_of

_SAMPLE_SECONDS = 0.02  # a sample is as many calls as fill this
_SECONDS = 2.0  # after which no further round starts
_ROUNDS = (5, 25)  # at least, at most


class Compiled:
    """A model as it is now, compiled: changes of its modules from now on are not seen; tensors are shared."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
        frozen = copy.deepcopy(model, dict(tensors)).eval()
        self.args, self.kwargs = arguments_of(inputs)
        self.fn = compile(frozen)
        self.call(3)
        self.count = max(1, math.ceil(_SAMPLE_SECONDS / self.call(1)))

    def call(self, count: int) -> float:
        """Seconds a call, over `count` of them."""
        with pristine.no_grad():
            start = time.perf_counter()
            for _ in range(count):
                self.fn(*self.args, **self.kwargs)
            return (time.perf_counter() - start) / count


def times(first: Compiled, second: Compiled) -> tuple[float, float, float]:
    """(seconds of the first, of the second, first / second): medians over rounds in which both run in turn."""
    samples: tuple[list[float], list[float]] = ([], [])
    deadline = time.perf_counter() + _SECONDS
    for done in range(_ROUNDS[1]):
        if done >= _ROUNDS[0] and time.perf_counter() > deadline:
            break
        for compiled, seconds in zip((first, second), samples, strict=True):
            seconds.append(compiled.call(compiled.count))
    ratio = statistics.median(a / b for a, b in zip(*samples, strict=True))
    return statistics.median(samples[0]), statistics.median(samples[1]), ratio
