"""What became of the kernels: which are the same, were fused, split, changed, are new or gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from lampwork.inspect.difference.side import PLUMBING, Kernel, Node, Side
from lampwork.records import record

MOST_OPERATORS = 6
"""That are named of a kernel."""

Fate = Literal["same", "changed", "fused", "unfused", "regrouped", "new", "gone"]


@record
class Match:
    """Kernels of one report, and those of the other that compute the same operators."""

    fate: Fate
    before: tuple[Kernel, ...]
    after: tuple[Kernel, ...]


def matches(before: Side, after: Side, nodes: Mapping[int, int]) -> list[Match]:
    """All kernels of both sides, each in one match, in the order of `after`; what is gone comes last.

    A node may be computed by several kernels, again where it is read. `nodes`: what `same_nodes` found.
    """
    found: list[tuple[tuple[int, int], Match]] = []
    ours = dict(enumerate(before.kernels))
    theirs = dict(enumerate(after.kernels))

    def take(fate: Fate, some: Sequence[int], others: Sequence[int]) -> None:
        place = (0, min(others)) if others else (1, min(some))
        made = Match(
            fate,
            tuple(ours.pop(number) for number in sorted(some)),
            tuple(theirs.pop(number) for number in sorted(others)),
        )
        found.append((place, made))

    equal: dict[frozenset[int | None], list[int]] = {}
    for number, kernel in theirs.items():
        equal.setdefault(frozenset[int | None](kernel.nodes), []).append(number)
    for number, kernel in list(ours.items()):
        same = equal.get(frozenset(map(nodes.get, kernel.nodes)))
        if same:
            other = same.pop(0)
            take("same" if kernel.kind == theirs[other].kind else "changed", (number,), (other,))
    for some, others in _together(ours, theirs, nodes):
        take(_fate(some, others), some, others)
    # Other operators at the same place: a product that is written in another way.
    places = _by_module(ours, before), _by_module(theirs, after)
    for place, some in places[0].items():
        others = places[1].get(place, [])
        if len(some) == len(others) == 1:
            take("changed", some, others)
    for number in list(theirs):
        take("new", (), (number,))
    for number in list(ours):
        take("gone", (number,), ())
    return [match for _, match in sorted(found, key=lambda each: each[0])]


def _fate(some: Sequence[int], others: Sequence[int]) -> Fate:
    if len(some) > 1:
        return "fused" if len(others) == 1 else "regrouped"
    return "changed" if len(others) == 1 else "unfused"


def _together(
    ours: Mapping[int, Kernel], theirs: Mapping[int, Kernel], nodes: Mapping[int, int]
) -> list[tuple[list[int], list[int]]]:
    """The parts that hang together by nodes which a kernel of each side computes."""
    makers: dict[int, list[int]] = {}
    for number, kernel in theirs.items():
        for node in dict.fromkeys(kernel.nodes):
            makers.setdefault(node, []).append(number)
    others_of = {
        number: list(dict.fromkeys(m for node in kernel.nodes for m in makers.get(nodes.get(node, -1), ())))
        for number, kernel in ours.items()
    }
    some_of: dict[int, list[int]] = {}
    for number, others in others_of.items():
        for other in others:
            some_of.setdefault(other, []).append(number)
    found: list[tuple[list[int], list[int]]] = []
    done: set[int] = set()
    for number, others in others_of.items():
        if number in done or not others:
            continue
        some, reached, open_ = [number], dict[int, None](), [number]
        done.add(number)
        while open_:
            for other in others_of[open_.pop()]:
                if other in reached:
                    continue
                reached[other] = None
                fresh = [each for each in some_of[other] if each not in done]
                done.update(fresh)
                some += fresh
                open_ += fresh
        found.append((some, list(reached)))
    return found


def _by_module(kernels: Mapping[int, Kernel], side: Side) -> dict[tuple[str, frozenset[str]], list[int]]:
    """Kernels by the modules that they compute; those outside of any module are left out."""
    found: dict[tuple[str, frozenset[str]], list[int]] = {}
    for number, kernel in kernels.items():
        modules = frozenset(side.nodes[node].module for node in kernel.nodes) - {""}
        if modules:
            found.setdefault((kernel.phase, modules), []).append(number)
    return found


def seconds_of(kernels: Iterable[Kernel]) -> float | None:
    """Of all of them; None unless each is known."""
    times = [kernel.seconds for kernel in kernels]
    known = [time for time in times if time is not None]
    return sum(known) if known and len(known) == len(times) else None


# --- in words ---------------------------------------------------------------------------------------------------------


def what_of(kernels: Iterable[Kernel], side: Side) -> str:
    """ "linear + gelu; add + layer_norm"."""
    return "; ".join(_operators([side.nodes[node] for node in kernel.nodes]) for kernel in kernels)


def where_of(kernels: Sequence[Kernel], side: Side) -> str:
    """ "encoder.layer.0 (model.py:12), forward#0, backward": what is common to the kernels."""
    nodes = [side.nodes[node] for kernel in kernels for node in kernel.nodes]
    named = [node.module.split(".") for node in nodes if node.module]
    module = ".".join(_common(named))
    line = next((node.line for node in nodes if node.line), "").rpartition("/")[2]
    place = f"{module} ({line})" if module and line else module or line
    regions = dict.fromkeys(side.regions[kernel.region].name for kernel in kernels)
    phases = dict.fromkeys(kernel.phase for kernel in kernels if kernel.phase != "forward")
    return ", ".join(filter(None, (place, *regions, *phases)))


def _common(paths: Sequence[list[str]]) -> list[str]:
    """The modules that all of them lie in."""
    # What the first and the last in order have in common, all between them have.
    first, last = min(paths, default=[]), max(paths, default=[])
    least = min(len(first), len(last))
    return first[: next((n for n in range(least) if first[n] != last[n]), least)]


def _operators(nodes: Sequence[Node]) -> str:
    counts: dict[str, int] = {}
    for node in nodes:
        name = short(node.op)
        if name not in PLUMBING or len(nodes) == 1:
            counts[name] = counts.get(name, 0) + 1
    shown = [name if count == 1 else f"{count} {name}" for name, count in counts.items()]
    rest = len(shown) - MOST_OPERATORS
    return " + ".join([*shown[:MOST_OPERATORS], *([f"{rest} more"] if rest > 0 else [])])


def short(operator: str) -> str:
    """ "aten::add.Tensor" -> "add"; other namespaces stay."""
    return re.sub(r"(::.*)\.[^.]*$", r"\1", operator).removeprefix("aten::")
