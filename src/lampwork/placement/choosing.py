"""The plan for a model: found by prediction, kept if it is faster by measurement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from lampwork.errors import OptionError, text_of
from lampwork.min_cut import NEVER
from lampwork.placement.assignment import Problem, assign_within
from lampwork.placement.devices import Device
from lampwork.placement.execution import Placing
from lampwork.placement.measuring import ROUNDS, Costs, Time, measure_pieces, problem_of, time_in_turn
from lampwork.records import record

LEAST_GAIN = 0.02
MOST_ROUNDS = 0.8
"""Several devices have to be faster than one by this share of the time, and in this share of the rounds: if they were
equal, that would happen by chance in 2 % of all cases."""


@record
class Call:
    """`model`: what runs the whole model. `run`: a call of it."""

    model: Callable[..., Any]
    run: Callable[[], Any]


Serve = Callable[[tuple[int, ...]], Call]


@record
class Candidate:
    """A whole model by one assignment: measured, or why not."""

    assignment: tuple[int, ...]
    seconds: float
    reason: str = ""


@record
class Choice:
    """What was measured, the assignment that won, and what runs the model by it.

    `times`: of each piece on each device, as measured alone. `costs`: the problem that was solved. `mixed`: the best
    candidate of several devices, if it is none of `singles`. `won`: in how many rounds of how many that was faster than
    the best of these.
    """

    times: tuple[tuple[Time, ...], ...]
    costs: Costs
    assignment: tuple[int, ...]
    model: Callable[..., Any]
    seconds: float
    singles: tuple[Candidate, ...]
    mixed: Candidate | None
    won: tuple[int, int]

    @property
    def keeps_one(self) -> bool:
        """Whether several devices were tried, and are not faster."""
        return self.mixed is not None and self.mixed.assignment != self.assignment


def choose(placing: Placing, inputs: Sequence[Tensor], serve: Serve) -> Choice:
    """Measure, solve, measure again.

    Args:
        inputs: of the graph.
        serve: makes what runs the whole model by an assignment, called with the arguments of a call of the model.

    Raises:
        OptionError: a piece runs on none of the devices.
    """
    times = measure_pieces(placing, inputs)
    _require_somewhere(placing, times)
    costs = problem_of(placing, times)
    sizes, limits = _sizes(placing), [device.free_bytes() for device in placing.devices]
    calls: dict[tuple[int, ...], Call] = {}
    singles: list[Candidate] = []
    for device in range(len(placing.devices)):
        assignment = (device,) * len(placing.pieces)
        reason = _why_not_alone(placing, device, times, sizes, limits)
        if reason:
            singles.append(Candidate(assignment, NEVER, reason))
        else:
            singles.append(_tried(placing, assignment, serve, calls))
    costs = replace(costs, problem=_fused(costs.problem, singles))
    best = assign_within(costs.problem, sizes, limits)
    mixed = None if len(set(best)) < 2 else _tried(placing, best, serve, calls)
    if not calls:
        raise OptionError(
            f"the model runs on none of the devices: {(mixed or singles[0]).reason}",
            fix=f"add {placing.home.name!r} to devices",
        )
    found = time_in_turn([call.run for call in calls.values()], _all_devices(placing))
    rounds = dict(zip(calls, found, strict=True))
    singles = [_timed(each, rounds) for each in singles]
    able = [each for each in singles if not each.reason]
    winner = min(able, key=lambda each: each.seconds).assignment if able else best
    won = 0
    if mixed is not None and not mixed.reason:
        mixed = _timed(mixed, rounds)
        ratios = [a / b for a, b in zip(rounds[best], rounds[winner], strict=True)]
        won = sum(ratio < 1 for ratio in ratios)
        if won >= MOST_ROUNDS * len(ratios) and statistics.median(ratios) < 1 - LEAST_GAIN:
            winner = best
    return Choice(
        tuple(map(tuple, times)),
        costs,
        winner,
        calls[winner].model,
        statistics.median(rounds[winner]),
        tuple(singles),
        mixed,
        (won, ROUNDS),
    )


def _timed(candidate: Candidate, rounds: Mapping[tuple[int, ...], Sequence[float]]) -> Candidate:
    found = rounds.get(candidate.assignment)
    return candidate if found is None else replace(candidate, seconds=statistics.median(found))


def _all_devices(placing: Placing) -> list[Device]:
    return [placing.home, *(device for device in placing.devices if device is not placing.home)]


def _require_somewhere(placing: Placing, times: Sequence[Sequence[Time]]) -> None:
    for piece, row in zip(placing.pieces, times, strict=True):
        if all(time.seconds == NEVER for time in row):
            why = "; ".join(f"{d.name}: {t.reason}" for d, t in zip(placing.devices, row, strict=True))
            raise OptionError(
                f"the part {piece.name} runs on none of the devices: {why}",
                fix=f"add {placing.home.name!r}, where the model is, to devices",
            )


def _why_not_alone(
    placing: Placing,
    device: int,
    times: Sequence[Sequence[Time]],
    sizes: Sequence[Sequence[float]],
    limits: Sequence[float],
) -> str:
    """Why not everything can run on one device; "" if it can."""
    for piece, row in zip(placing.pieces, times, strict=True):
        if row[device].seconds == NEVER:
            return f"{piece.name} cannot run there: {row[device].reason}"
    needed = sum(row[device] for row in sizes)
    return f"its weights, {needed:,.0f} bytes, do not fit" if needed > limits[device] else ""


def _tried(
    placing: Placing, assignment: tuple[int, ...], serve: Serve, calls: dict[tuple[int, ...], Call]
) -> Candidate:
    """Compiled and timed; one that works is put into `calls`."""
    try:
        call = serve(assignment)
        seconds = placing.home.seconds(call.run)
    except Exception as error:  # noqa: BLE001  (whatever it is, it does not run this way)
        return Candidate(assignment, NEVER, text_of(error).splitlines()[0])
    calls[assignment] = call
    return Candidate(assignment, seconds)


def _fused(problem: Problem, singles: Sequence[Candidate]) -> Problem:
    """The problem with times of pieces as shares of what all of them take as one, where that is known and less: what
    runs on one device in a row is compiled as one."""
    factors: list[float] = []
    for device, single in enumerate(singles):
        apart = sum(row[device] for row in problem.times)
        if single.seconds == NEVER or not 0 < apart < NEVER:
            factors.append(1.0)
            continue
        whole = single.seconds - problem.copying(single.assignment)
        factors.append(min(1.0, max(whole / apart, 0.1)))
    times = tuple(tuple(t * f for t, f in zip(row, factors, strict=True)) for row in problem.times)
    return replace(problem, times=times)


def _sizes(placing: Placing) -> list[list[float]]:
    """The bytes of weights that each piece brings to each device: none where they are already."""
    return [
        [0.0 if device.memory == placing.home.memory else float(size) for device in placing.devices]
        for size in map(placing.weight_bytes, placing.pieces)
    ]
