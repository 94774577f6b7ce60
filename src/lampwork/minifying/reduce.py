"""Steps that make a failing case smaller. Each candidate is kept only if it fails as the whole did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, fx

from lampwork.graph.nested import replaced
from lampwork.minifying.case import (
    Case,
    Unit,
    assemble,
    cut,
    outputs,
    placeholders,
    units,
)
from lampwork.minifying.data import evaluated, simpler
from lampwork.standard import itertools
from lampwork.testing.failing import Check, Failure, NoProgram

Say = Callable[[str], None]

_SMALL = (1, 2, 3)
"""Sizes that are tried in place of larger ones, before half of them."""


@dataclass(slots=True)
class Reduction:
    """The smallest case so far that fails like `failure`. `texts`: how inputs are written that are no longer the
    recorded ones, as Python. After `deadline` nothing more is tried."""

    case: Case
    failure: Failure
    check: Check
    deadline: float
    say: Say
    tried: int = 0
    texts: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def fails(self, candidate: Case) -> bool:
        """Whether it fails in the same way."""
        if self.is_over:
            return False
        self.tried += 1
        try:
            found = candidate.failure(self.check)
        except NoProgram:
            return False
        if found is None or found != self.failure:
            return False
        self.failure = found  # the same, as this one shows it
        return True

    def take(self, candidate: Case) -> bool:
        """Go on with a candidate if it fails in the same way."""
        if not self.fails(candidate):
            return False
        self.case = candidate
        return True

    def run(self) -> None:
        """All steps, the one that makes most of a difference first."""
        for step in (
            _fewer_calls,
            _fewer_results,
            _no_gradients,
            _no_constants,
            _smaller,
            _plainer,
            _fewer_keywords,
        ):
            before = self.case.nodes
            step(self)
            name = step.__name__.strip("_").replace("_", " ")
            self.say(f"{name}: {before} to {self.case.nodes} operators, {self.tried} programs tried")
            if self.is_over:
                self.say("the time is over: it may still become smaller")
                return


# --- the graph --------------------------------------------------------------------------------------------------------


def _fewer_calls(state: Reduction) -> None:
    """Delta debugging (Zeller, Hildebrandt 2002) over the calls of the graph: pieces alone, then all but one piece,
    then smaller pieces. What a piece reads of others is an input of the value that eager computed, so that pieces far
    from the failure go at once, and most programs that are tried are small."""
    whole = state.case
    values = whole.values()
    kept = units(whole.graph)
    pieces = 2
    while len(kept) > 1 and not state.is_over:
        smaller = _first(state, whole, values, _candidates(kept, pieces))
        if smaller is not None:
            alone = len(smaller) * 2 <= len(kept)
            kept, pieces = smaller, 2 if alone else max(pieces - 1, 2)
        elif pieces >= len(kept):
            return
        else:
            pieces = min(2 * pieces, len(kept))


def _first(
    state: Reduction, whole: Case, values: Mapping[fx.Node, Any], candidates: Iterator[list[Unit]]
) -> list[Unit] | None:
    for candidate in candidates:
        if state.take(cut(whole, candidate, values)):
            state.say(f"{len(candidate)} operators fail alone")
            return candidate
    return None


def _candidates(kept: Sequence[Unit], pieces: int) -> Iterator[list[Unit]]:
    ends = [round(len(kept) * number / pieces) for number in range(pieces + 1)]
    ranges = list(itertools.pairwise(ends))
    if len(kept) > 2:
        # Half a piece further too: what fails may lie across a border.
        middles = [(a + b) // 2 for a, b in ranges]
        ranges += itertools.pairwise(middles)
    for first, last in ranges:
        if 0 < last - first < len(kept):
            yield list(kept[first:last])
    if pieces > 2:
        for first, last in ranges[:pieces]:
            yield [*kept[:first], *kept[last:]]


def _fewer_results(state: Reduction) -> None:
    """Return one result, or leave out one after the other."""
    body = [node for unit in units(state.case.graph) for node in unit]
    ends = list(outputs(state.case.graph))
    if len(ends) < 2:
        return
    for end in ends:
        if state.take(_with_results(state.case, body, [end])):
            return
    for end in ends:
        fewer = [node for node in outputs(state.case.graph) if node.name != end.name]
        if fewer:
            now = [node for unit in units(state.case.graph) for node in unit]
            state.take(_with_results(state.case, now, fewer))


def _with_results(case: Case, body: Sequence[fx.Node], ends: Sequence[fx.Node]) -> Case:
    """The case with these results only, and what they need."""
    needed = set(ends)
    for node in reversed(body):
        if node in needed:
            needed.update(node.all_input_nodes)
    whole_units = [unit for unit in units(case.graph) if any(node in needed for node in unit)]
    return cut(case, whole_units, case.values(), ends)


def _no_gradients(state: Reduction) -> None:
    tensors = {name: t.detach() for name, t in state.case.tensors.items()}
    if any(t.requires_grad for t in state.case.tensors.values()):
        state.take(replace(state.case, tensors=tensors))


def _no_constants(state: Reduction) -> None:
    """Weights that are inputs: a plainer program."""
    if state.case.bound:
        graph = _copy(state.case.graph)
        for node in placeholders(graph):
            node.meta["bound"] = False
        state.take(replace(state.case, graph=graph))


def _copy(graph: fx.Graph) -> fx.Graph:
    body = [node for unit in units(graph) for node in unit]
    return assemble(placeholders(graph), body, outputs(graph))


# --- sizes and numbers ------------------------------------------------------------------------------------------------


def _smaller(state: Reduction) -> None:
    """Give all sizes of one number another one, in the tensors and in the arguments of the calls."""
    again = True
    while again and not state.is_over:
        again = False
        for size in sorted({s for t in state.case.tensors.values() for s in t.shape if s > 1}, reverse=True):
            for less in dict.fromkeys((*_SMALL, size // 2)):
                if less < size and state.take(_resized(state.case, size, less)):
                    again = True
                    break


def _resized(case: Case, size: int, less: int) -> Case:
    """The case with `less` in place of `size`, which eager may refuse."""

    def changed(value: Any) -> Any:
        return less if type(value) is int and value == size else value

    graph = _copy(case.graph)
    for node in graph.nodes:
        if node.op == "call_function":
            node.args = replaced(node.args, int, changed)
            node.kwargs = replaced(dict(node.kwargs), int, changed)
    return replace(case, graph=graph, tensors={n: _narrowed(t, size, less) for n, t in case.tensors.items()})


def _narrowed(tensor: Tensor, size: int, less: int) -> Tensor:
    """The first elements of each dimension of this size, in the same order in memory."""
    if size not in tensor.shape:
        return tensor
    part = tensor.detach()
    for dim, count in enumerate(tensor.shape):
        part = part.narrow(dim, 0, less) if count == size else part
    order = sorted(range(part.dim()), key=lambda dim: (-tensor.stride(dim), dim))
    strides, step = [0] * part.dim(), 1
    for dim in reversed(order):
        if tensor.stride(dim):  # what is expanded stays so
            strides[dim], step = step, step * part.shape[dim]
    once = tuple(slice(None) if stride else slice(0, 1) for stride in strides)
    made = part.new_empty(step).as_strided(part.shape, strides)
    made[once].copy_(part[once])
    return made.requires_grad_(tensor.requires_grad)


def _plainer(state: Reduction) -> None:
    """Give each tensor simple numbers: all at once, or one after the other."""
    names = list(state.case.tensors)
    for texts in zip(
        *(simpler(state.case.tensors[name], number) for number, name in enumerate(names)), strict=True
    ):
        if _replace(state, dict(zip(names, texts, strict=True))):
            return
    for number, name in enumerate(names):
        for text in simpler(state.case.tensors[name], number):
            if _replace(state, {name: text}):
                break


def _replace(state: Reduction, texts: Mapping[str, str]) -> bool:
    made = {name: evaluated(text) for name, text in texts.items()}
    if not state.take(replace(state.case, tensors={**state.case.tensors, **made})):
        return False
    state.texts.update(texts)
    return True


def _fewer_keywords(state: Reduction) -> None:
    for name in state.case.keywords:
        keywords = {n: value for n, value in state.case.keywords.items() if n != name}
        state.take(replace(state.case, keywords=keywords))
    options = dict(state.case.keywords.get("options", {}))
    for name in list(options):
        fewer = {n: value for n, value in options.items() if n != name}
        if state.take(replace(state.case, keywords={**state.case.keywords, "options": fewer})):
            options = fewer
