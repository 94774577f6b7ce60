"""Registered passes, rewrites and sequences in their places among the passes of the tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.plugins.guarded import PassStep, RewriteStep
from lampwork.plugins.registry import Place, Registered, Selection
from lampwork.records import record

DEFAULT_PLACE = Place("rewrites")
"""Where a pass runs that says nothing of its place."""


@record
class SequenceStep:
    """Steps that run in a row, under one name."""

    name: str
    steps: tuple[Any, ...]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        for step in self.steps:
            step.run(graph, ctx)


def arrange(steps: Sequence[Any], selection: Selection) -> list[Any]:
    """`steps` with what is registered at its places: of several behind one pass, in the order of registration."""
    found = list(steps)
    builtin = {step.name: step for step in steps}
    anchors: dict[int, Place] = {}
    waiting = [(item, item.place or DEFAULT_PLACE) for item in selection.placed]
    while waiting:
        left: list[tuple[Registered, Place]] = []
        for item, place in waiting:
            position = next((i for i, step in enumerate(found) if step.name == place.anchor), None)
            if position is None:
                left.append((item, place))
                continue
            if not place.before:
                position += 1
                while position < len(found) and anchors.get(id(found[position])) == place:
                    position += 1
            step = _step(item, selection, builtin)
            anchors[id(step)] = place
            found.insert(position, step)
        if len(left) == len(waiting):
            # What they were placed by is off, or no longer registered.
            left = [(item, DEFAULT_PLACE) for item, _ in left]
            if any(place == DEFAULT_PLACE for _, place in waiting):
                return [*found, *(_step(item, selection, builtin) for item, _ in left)]
        waiting = left
    return found


def _step(item: Registered, selection: Selection, builtin: dict[str, Any]) -> Any:
    if item.kind == "rewrite":
        return RewriteStep(item.name, (item.rule,) if item.rule is not None else ())
    if item.kind == "pass":
        return PassStep(item)
    steps: list[Any] = []
    for member in selection.members(item):
        if isinstance(member, str):
            if member in builtin:  # else it is of a backend that this is not compiled for
                steps.append(builtin[member])
        elif member.kind == "rewrite" and member.rule is not None:
            # Neighbours work together, each on what the others make.
            rules: tuple[Any, ...] = (member.rule,)
            if steps and isinstance(steps[-1], RewriteStep):
                rules = (*steps.pop().rules, member.rule)
            steps.append(RewriteStep(item.name, rules))
        else:
            steps.append(_step(member, selection, builtin))
    return SequenceStep(item.name, tuple(steps))
