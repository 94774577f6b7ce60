"""The cheapest cut, against all cuts."""

from __future__ import annotations

import itertools
import random

import pytest

from lampwork.min_cut import NEVER, Network


def cost(edges: list[tuple[int, int, float, float]], side: set[int]) -> float:
    total = 0.0
    for tail, head, forth, back in edges:
        if tail in side and head not in side:
            total += forth
        if head in side and tail not in side:
            total += back
    return total


@pytest.mark.parametrize("seed", range(60))
def test_no_cut_is_cheaper(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 9)
    network = Network()
    for _ in range(count - 2):
        network.node()
    edges: list[tuple[int, int, float, float]] = []
    for _ in range(draw.randint(1, 24)):
        tail, head = draw.sample(range(count), 2)
        forth, back = float(draw.randint(0, 9)), float(draw.choice([0, 0, draw.randint(0, 9)]))
        if draw.random() < 0.05 and (tail, head) != (network.source, network.sink):
            forth = NEVER
        edges.append((tail, head, forth, back))
        network.edge(tail, head, forth, back)
    found = network.source_side()
    assert network.source in found
    assert network.sink not in found
    inner = range(2, count)
    best = min(
        cost(edges, {network.source, *chosen})
        for size in range(len(inner) + 1)
        for chosen in itertools.combinations(inner, size)
    )
    assert cost(edges, found) == best or best == NEVER
