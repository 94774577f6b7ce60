"""The cheapest assignment, against all assignments."""

from __future__ import annotations

import itertools
import random

import pytest

from lampwork.min_cut import NEVER
from lampwork.placement.assignment import HOME, Crossing, Problem, assign, assign_within


def random_problem(rng: random.Random, parts: int, devices: int, memories: int) -> Problem:
    times = []
    for _ in range(parts):
        row = [rng.choice([rng.random(), 0.0, float(rng.randint(0, 3))]) for _ in range(devices)]
        for device in rng.sample(range(devices), rng.randint(0, devices - 1)):
            row[device] = NEVER if rng.random() < 0.3 else row[device]
        times.append(tuple(row))
    crossings = []
    for maker in (HOME, *range(parts)):
        for _ in range(rng.randint(0, 2)):
            later = [part for part in range(parts) if part > maker]
            users = rng.sample(later, rng.randint(0, min(3, len(later))))
            if maker != HOME and (rng.random() < 0.3 or not users):
                users.append(HOME)
            table = [[0.0 if a == b else rng.random() * 2 for b in range(memories)] for a in range(memories)]
            crossings.append(Crossing(maker, tuple(users), tuple(map(tuple, table))))
    of_devices = tuple(d % memories for d in range(devices))
    return Problem(tuple(times), tuple(crossings), of_devices, rng.randrange(memories))


def brute_force(problem: Problem) -> float:
    every = itertools.product(range(problem.devices), repeat=len(problem.times))
    return min(map(problem.cost, every))


@pytest.mark.parametrize("memories", [1, 2, 3])
def test_two_devices_cost_what_the_best_of_all_assignments_costs(memories: int) -> None:
    rng = random.Random(memories)
    for _ in range(150):
        problem = random_problem(rng, rng.randint(0, 8), 2, max(2, memories))
        found = assign(problem)
        assert problem.cost(found) == pytest.approx(brute_force(problem), abs=1e-12)


@pytest.mark.parametrize("memories", [2, 3, 4])
def test_more_devices_are_no_worse_than_any_of_them_alone_and_as_a_rule_the_best(memories: int) -> None:
    rng = random.Random(10 + memories)
    exact = 0
    for _ in range(60):
        problem = random_problem(rng, rng.randint(1, 6), 3, memories)
        cost, best = problem.cost(assign(problem)), brute_force(problem)
        assert best <= cost + 1e-12
        assert all(cost <= problem.cost([d] * len(problem.times)) + 1e-12 for d in range(3))
        exact += cost <= best + 1e-12
    assert exact >= 57


def test_one_copy_serves_all_users_of_a_memory() -> None:
    cost = ((0.0, 1.0), (1.0, 0.0))
    # Three users gain 0.4 each on the other device: less than a copy, more than a third of one.
    problem = Problem(((0.0, NEVER), *[(0.4, 0.0)] * 3), (Crossing(0, (1, 2, 3), cost),), (0, 1), 0)
    assert assign(problem) == (0, 1, 1, 1)
    assert problem.cost(assign(problem)) == pytest.approx(1.0)


def test_results_that_go_home_keep_a_part_there() -> None:
    cost = ((0.0, 1.0), (1.0, 0.0))
    problem = Problem(((1.5, 0.0),), (Crossing(HOME, (0,), cost), Crossing(0, (HOME,), cost)), (0, 1), 0)
    assert assign(problem) == (0,)
    assert assign(Problem(((2.5, 0.0),), problem.crossings, (0, 1), 0)) == (1,)


def test_limits_hold_and_the_parts_that_gain_most_for_their_bytes_stay() -> None:
    problem = Problem(((5.0, 1.0), (2.0, 1.0), (9.0, 1.0)), (), (0, 1), 0)
    sizes = [(0.0, 10.0), (0.0, 10.0), (0.0, 10.0)]
    assert assign_within(problem, sizes, (0.0, 30.0)) == (1, 1, 1)
    assert assign_within(problem, sizes, (0.0, 25.0)) == (1, 0, 1)
    assert assign_within(problem, sizes, (0.0, 15.0)) == (0, 0, 1)
    assert assign_within(problem, sizes, (0.0, 5.0)) == (0, 0, 0)


def test_alike_parts_that_do_not_all_fit_stay_side_by_side() -> None:
    copy = ((0.0, 0.3), (0.3, 0.0))
    ends = [
        Crossing(HOME, (0,), copy),
        *(Crossing(i, (i + 1,), copy) for i in range(7)),
        Crossing(7, (HOME,), copy),
    ]
    problem = Problem(((1.0, 0.5),) * 8, tuple(ends), (0, 1), 0)
    assert assign(problem) == (1,) * 8
    found = assign_within(problem, [(0.0, 10.0)] * 8, (0.0, 55.0))
    assert sum(found) == 5 and sum(a != b for a, b in zip(found, found[1:])) == 1
    # One of them gains less than its copies cost.
    assert assign_within(problem, [(0.0, 10.0)] * 8, (0.0, 15.0)) == (0,) * 8


def test_limits_hold_in_random_problems_and_cost_no_more_than_a_device_less() -> None:
    rng = random.Random(5)
    for _ in range(60):
        problem = random_problem(rng, rng.randint(1, 7), 2, 2)
        sizes = [(0.0, float(rng.randint(0, 5))) for _ in problem.times]
        limit = float(rng.randint(0, 12))
        found = assign_within(problem, sizes, (0.0, limit))
        every = [a for a in itertools.product(range(2), repeat=len(sizes)) if problem.cost(a) < NEVER]
        fit = [a for a in every if sum(s[1] for s, d in zip(sizes, a) if d) <= limit]
        if fit:
            assert found in fit
            light = [a for a in fit if not any(s[1] for s, d in zip(sizes, a) if d)]
            assert not light or problem.cost(found) <= min(map(problem.cost, light)) + 1e-12
