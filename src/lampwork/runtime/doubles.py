"""Backwards that were asked for with `create_graph=True`: compiled as differentiable functions from the second on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from lampwork.differentiation.joint import Asked
from lampwork.differentiation.split import Given
from lampwork.locks import new_lock
from lampwork.records import record
from lampwork.runtime.trained import Run, laid_out

MOST_DOUBLES = 8
"""How many ways to ask for a differentiable backward of a graph are compiled, for each value of its symbols."""
MOST_REQUESTS = 64
"""How many are kept for all values."""


@record
class Double:
    """A segment's backward that is differentiable: `run` takes `inputs` and gives the gradients of the numbers
    `gradients`, as in `differentiation.double.Double`. `values` gives those of the segment's sources that are computed,
    of the region's tensors `given`; None if there are none."""

    run: Run
    inputs: tuple[Given, ...]
    gradients: tuple[int, ...]
    values: Run | None
    given: tuple[int, ...]

    @property
    def results(self) -> tuple[int, ...]:
        """Numbers of the results that it takes."""
        return tuple(each.number for each in self.inputs if each.kind == "result")

    def __call__(
        self,
        kept: Sequence[Tensor],
        sources: Sequence[tuple[int | None, Tensor]],
        results: Mapping[int, Tensor],
        tangents: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """The gradients of the sources. `sources`: each with its number among the placeholders, if it is one."""
        own = {number: tensor for number, tensor in sources if number is not None}
        given: list[Tensor] = []
        for each in self.inputs:
            if each.kind == "tangent":
                given.append(tangents[each.number])
            elif each.kind == "source":
                given.append(sources[each.number][1])
            elif each.kind == "result":
                given.append(results[each.number])
            else:
                given.append(own.get(each.number, kept[each.number]))
        made = self.run(given)
        return [None if number < 0 else made[number] for number in self.gradients]


BuildDouble = Callable[[fx.Graph, Any, int, Asked, Sequence[bool]], "Double | None"]
"""(graph, its segments, number of a segment, what is asked of its backward, which of the gradients that are given
require grad); None if it cannot be compiled."""


@dataclass(slots=True, eq=False)
class _Request:
    number: int
    numbers: Mapping[str, int] | None
    asked: Asked
    attached: tuple[bool, ...]
    double: Double | None = None
    is_built: bool = False


@dataclass(slots=True, eq=False)
class Doubles:
    """Those of one graph. `concrete`: the graph and its segments, with these values of its symbols."""

    build: BuildDouble
    concrete: Callable[[Mapping[str, int] | None], tuple[fx.Graph, Any]]
    _requests: list[_Request] = field(default_factory=list[_Request])
    _lock: threading.RLock = field(default_factory=new_lock)

    def note(
        self, number: int, numbers: Mapping[str, int] | None, asked: Asked, grads: Sequence[Tensor | None]
    ) -> None:
        """Eager was asked this of segment `number`, given `grads`."""
        alike = sum(request.numbers == numbers for request in self._requests)
        if alike < MOST_DOUBLES and self._find(number, numbers, grads, asked.needed) is None:
            if len(self._requests) == MOST_REQUESTS:
                del self._requests[0]
            self._requests.append(_Request(number, numbers, asked, _attached(grads)))

    def find(
        self,
        number: int,
        numbers: Mapping[str, int] | None,
        grads: Sequence[Tensor | None],
        needed: Sequence[bool],
    ) -> tuple[Double, list[Tensor]] | None:
        """What gives the gradients that are `needed` of segment `number`, and the gradients that it is given, laid out
        for it; None if this is asked for the first time, or cannot be compiled."""
        found = self._find(number, numbers, grads, needed)
        if found is None:
            return None
        request, tangents = found
        with self._lock:
            if not request.is_built:
                request.is_built = True
                graph, segments = self.concrete(numbers)
                request.double = self.build(graph, segments, number, request.asked, request.attached)
        return None if request.double is None else (request.double, tangents)

    def _find(
        self,
        number: int,
        numbers: Mapping[str, int] | None,
        grads: Sequence[Tensor | None],
        needed: Sequence[bool],
    ) -> tuple[_Request, list[Tensor]] | None:
        attached = _attached(grads)
        for request in tuple(self._requests):
            if (request.number, request.numbers, request.attached) != (number, numbers, attached):
                continue
            tangents = laid_out(request.asked, grads, needed)
            if tangents is not None:
                return request, tangents
        return None


def _attached(grads: Sequence[Tensor | None]) -> tuple[bool, ...]:
    return tuple(grad is not None and grad.requires_grad for grad in grads)
