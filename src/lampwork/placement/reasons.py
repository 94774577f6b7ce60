"""A choice in words and figures: why each part runs where it does."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from lampwork.display.units import time_text
from lampwork.min_cut import NEVER
from lampwork.partitioning.parts import calls_in
from lampwork.placement.assignment import HOME
from lampwork.placement.choosing import Candidate, Choice
from lampwork.placement.devices import Absent
from lampwork.placement.execution import Fragment, Placing, nbytes
from lampwork.placement.plan import CopyPlan, PartPlan, PlacementPlan, WholePlan


def plan_of(placing: Placing, choice: Choice, absent: tuple[Absent, ...], difference: float) -> PlacementPlan:
    """The report of a choice."""
    names = [device.name for device in placing.devices]
    problem = choice.costs.problem
    parts = [_part(placing, choice, number) for number in range(len(placing.pieces))]
    return PlacementPlan(
        placing.home.name,
        tuple(parts),
        tuple(_copies(placing, choice)),
        problem.cost(choice.assignment),
        choice.seconds,
        tuple(_whole(each, names) for each in choice.singles),
        None if choice.mixed is None else _whole(choice.mixed, names),
        choice.won,
        _verdict(choice, names),
        difference,
        _weight_bytes(placing, choice.assignment),
        absent,
    )


def _whole(candidate: Candidate, names: Sequence[str]) -> WholePlan:
    used = tuple(dict.fromkeys(names[device] for device in candidate.assignment))
    return WholePlan(used, None if candidate.reason else candidate.seconds, candidate.reason)


def _verdict(choice: Choice, names: Sequence[str]) -> str:
    mixed = choice.mixed
    able = [each for each in choice.singles if not each.reason]
    if mixed is None:
        return "one device for all" + (": no mix is predicted to be faster" if len(names) > 1 else "")
    text, (won, rounds) = str(_whole(mixed, names)), choice.won
    if choice.keeps_one:
        if mixed.reason:
            return f"one device for all: a mix failed ({text})"
        return f"one device for all: {text} is not faster for sure, in {won} of {rounds} rounds"
    if not able:
        return "on several devices, since none of them can run all"
    best = min(able, key=lambda each: each.seconds)
    gain = f"{best.seconds / choice.seconds:.2f} times as fast as {names[best.assignment[0]]} alone"
    return f"{gain}, faster in {won} of {rounds} rounds"


def _part(placing: Placing, choice: Choice, number: int) -> PartPlan:
    piece = placing.pieces[number]
    rows = list(zip(placing.devices, choice.times[number], strict=True))
    return PartPlan(
        piece.name,
        calls_in(piece.nodes),
        placing.weight_bytes(piece),
        {device.name: time.seconds for device, time in rows if time.seconds != NEVER},
        {device.name: time.reason for device, time in rows if time.seconds == NEVER},
        placing.devices[choice.assignment[number]].name,
        _why(placing, choice, number),
    )


def _why(placing: Placing, choice: Choice, number: int) -> str:
    """Against the device on which the whole would be fastest if only this part moved."""
    problem, assignment = choice.costs.problem, choice.assignment
    here, row = assignment[number], choice.times[number]
    others = [d for d in range(len(placing.devices)) if d != here]
    if not others:
        return "the only device"
    able = [d for d in others if row[d].seconds != NEVER]
    if not able:
        return "; ".join(f"{placing.devices[d].name}: {row[d].reason}" for d in others)

    def moved(device: int) -> tuple[int, ...]:
        return (*assignment[:number], device, *assignment[number + 1 :])

    other = min(able, key=lambda device: problem.cost(moved(device)))
    name = placing.devices[other].name
    gain = problem.times[number][here] - problem.times[number][other]
    copies = problem.copying(moved(other)) - problem.copying(assignment)
    if gain > 0 and copies > gain:
        return f"{name} takes {time_text(gain)} less, but copies {time_text(copies)}"
    if gain > 0:
        return f"{name} takes {time_text(gain)} less" + (" by prediction" if choice.keeps_one else "")
    slower = f"{name} takes {time_text(-gain)} more"
    return f"{slower} and copies {time_text(copies)}" if copies > 0 else slower


def _copies(placing: Placing, choice: Choice) -> list[CopyPlan]:
    problem = choice.costs.problem
    memories = {problem.home: placing.home.memory}
    memories.update((problem.memories[i], device.memory) for i, device in enumerate(placing.devices))
    found: list[CopyPlan] = []
    for node, crossing in zip(choice.costs.nodes, problem.crossings, strict=True):
        source = problem.memory(crossing.maker, choice.assignment)
        name = _maker(placing, node, crossing.maker)
        for target in problem.targets(crossing, choice.assignment):
            seconds = crossing.seconds[source][target]
            found.append(CopyPlan(name, memories[source], memories[target], nbytes(node), seconds))
    return found


def _maker(placing: Placing, node: fx.Node, maker: int) -> str:
    return (
        f"input {node.name}" if maker == HOME else f"a result of part {maker} ({placing.pieces[maker].name})"
    )


def _weight_bytes(placing: Placing, assignment: Sequence[int]) -> dict[str, int]:
    """Of the weights that are copied to each device, each counted once."""
    copied: dict[str, set[fx.Node]] = {}
    for piece, number in zip(placing.pieces, assignment, strict=True):
        device = placing.devices[number]
        if device.memory != placing.home.memory:
            copied.setdefault(device.name, set()).update(Fragment.of(placing.graph, piece.nodes).weights)
    return {name: sum(map(nbytes, nodes)) for name, nodes in copied.items()}
