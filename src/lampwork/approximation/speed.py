"""How fast models are when they are compiled, against each other."""

from __future__ import annotations

import statistics
from typing import Any

from torch import nn

from lampwork import pristine
from lampwork.api import arguments_of, compile
from lampwork.swapping.difference import twin
from lampwork.timing import rounds

_SECONDS = 2.0  # after which no further round starts


class Compiled:
    """A model as it is now, compiled: changes of its modules from now on are not seen; tensors are shared."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.args, self.kwargs = arguments_of(inputs)
        self.fn = compile(twin(model).eval())
        for _ in range(3):
            self()

    def __call__(self) -> None:
        with pristine.no_grad():
            self.fn(*self.args, **self.kwargs)


def times(first: Compiled, second: Compiled) -> tuple[float, float, float]:
    """(seconds of the first, of the second, first / second): medians over rounds in which both run in turn."""
    a, b = rounds([(first, ()), (second, ())], _SECONDS)
    ratio = statistics.median(x / y for x, y in zip(a, b, strict=True))
    return statistics.median(a), statistics.median(b), ratio
