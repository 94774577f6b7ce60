"""What runs a region that is trained: a forward that saves tensors, and compiled backwards of its segments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from lampwork import pristine
from lampwork.differentiation.joint import Asked, is_expanded
from lampwork.differentiation.split import Given
from lampwork.locks import new_lock
from lampwork.records import record
from lampwork.runtime import nodes

Run = Callable[[list[Tensor]], Sequence[Tensor]]
Native = Callable[[list[Tensor]], "list[Tensor] | None"]
"""A region's results; None, and nothing was done, where the call needs Python."""


def laid_out(asked: Asked, grads: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor] | None:
    """The gradients that are given, as a program takes them that was made for what is `asked`; None if they are others,
    or others are needed."""
    if tuple(needed) != asked.needed or nodes.modes_are_on():
        return None
    given: list[Tensor] = []
    for grad, spec, expanded in zip(grads, asked.tangents, asked.expanded, strict=True):
        if grad is None and spec is None:
            continue
        if grad is None or spec is None or not nodes.is_plain(grad):
            return None
        if (grad.dtype, grad.device) != (spec.dtype, spec.device) or tuple(grad.shape) != spec.shape:
            return None
        if grad.stride() != spec.strides:
            if grad.numel() > 1 and not (expanded and is_expanded(grad)):
                return None  # eager's gradients would be laid out in another way as well
            laid = pristine.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device=spec.device)
            grad = laid.copy_(grad)
        given.append(grad)
    return given


@dataclass(slots=True, eq=False)
class Awaited:
    """A program whose machine code may still be compiled. `make`: waits for it; gives None if it failed, which is on
    record then."""

    make: Callable[[], Run | None] | None
    _program: Run | None = field(default=None, init=False)
    _lock: threading.RLock = field(default_factory=new_lock, init=False)

    def result(self) -> Run | None:
        """The program; None if it could not be made."""
        with self._lock:
            if self.make is not None:
                self._program = self.make()
                self.make = None
            return self._program


@record
class CompiledBackward:
    """The backward of one segment: `program` takes `inputs`; `gradients` are the numbers of its results, as in
    `differentiation.split.Backward`. It is right for what is `asked` alone."""

    program: Awaited
    inputs: tuple[Given, ...]
    gradients: tuple[int, ...]
    asked: Asked

    def given(
        self, kept: Sequence[Tensor], saved: Sequence[Tensor | None], tangents: Sequence[Tensor]
    ) -> list[Tensor]:
        """What the program takes."""
        tables: dict[str, Any] = {"kept": kept, "saved": saved, "tangent": tangents}
        return [tables[given.kind][given.number] for given in self.inputs]

    @property
    def saved(self) -> frozenset[int]:
        """The numbers of the saved tensors that it takes."""
        return frozenset(given.number for given in self.inputs if given.kind == "saved")

    def run(self, program: Run, given: list[Tensor]) -> list[Tensor | None]:
        """The gradients of the segment's sources. A program of our own takes the tensors out of the list, and drops
        each after its last use."""
        results = getattr(program, "consume", program)(given)
        return [None if number < 0 else results[number] for number in self.gradients]


@record
class Trained:
    """`program` takes those of the region's tensors that are `given`, and returns its results, then those that are
    saved. `n_results`: how many come before. `exposed`: owners of memory that is saved and that the caller can write
    to, each with the number of a result in it: once it is written, backward needs the region to be run again.
    `deterministic`: whether algorithms had to be when it was made, as they have to be when it runs."""

    program: Run
    given: tuple[int, ...]
    n_results: int
    exposed: Mapping[fx.Node, int]
    backwards: Mapping[int, CompiledBackward]
    deterministic: bool = field(default_factory=pristine.are_deterministic_algorithms_enabled)

    def forward(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The program, of the region's tensors."""
        return self.program([tensors[number] for number in self.given])


@dataclass(slots=True, eq=False)
class Training:
    """What is known of training a region, for one set of numbers. `asked`: what the first backward asked of each
    segment, or will ask, of those in `foreseen`. `calls`: how many came after it. `is_fresh`: no call of what was
    compiled has come yet; backward may still be compiled while the first one runs. `native`: what runs the region's
    calls without Python, once that `is_planned`, if it can be had. `is_open`: what trains it is compiled for all sizes.
    """

    asked: dict[int, Asked] = field(default_factory=dict[int, Asked])
    trained: Trained | None = None
    calls: int = 0
    is_fresh: bool = False
    foreseen: set[int] = field(default_factory=set[int])
    native: Native | None = None
    is_planned: bool = False
    is_open: bool = False

    def watch(self, number: int, asked: Asked) -> None:
        """A backward in eager asks this of a segment. What is compiled is what the first asks for."""
        if number in self.foreseen:
            self.foreseen.discard(number)
            if not asked.is_like(self.asked[number]):
                self.asked[number] = asked
                self.trained = self.native = None
                self.is_planned = False
        self.asked.setdefault(number, asked)


Build = Callable[[Any, Mapping[int, Asked]], Trained | None]
"""(rerun, what is asked of each segment) -> what trains the region; None if it cannot be compiled. Tells the rerun what
eager saves, where that is not known yet."""
