"""Random chains of views: index maps and strides against torch, and what a chain costs."""

from __future__ import annotations

import random

import pytest
import torch
from lower_harness import check


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def random_shape(rng, numel):
    shape = []
    while numel > 1 and len(shape) < 4:
        d = rng.choice(divisors(numel))
        shape.append(d)
        numel //= d
    shape.append(numel)
    return shape


def random_step(rng, x):
    """One view (or reshape) that x allows, as a function."""
    rank = x.dim()
    kind = rng.choice(
        ["reshape", "permute", "slice", "select", "unsqueeze", "squeeze", "expand", "transpose", "flip"]
    )
    if kind == "permute" and rank:
        dims = rng.sample(range(rank), rank)
        return lambda y: y.permute(dims)
    if kind == "transpose" and rank:
        a, b = rng.randrange(rank), rng.randrange(rank)
        return lambda y: y.transpose(a, b)
    if kind == "slice" and rank:
        dim = rng.randrange(rank)
        size = x.shape[dim]
        start = rng.randrange(size)
        stop, step = rng.randint(start + 1, size), rng.choice([1, 1, 2])
        where = (*([slice(None)] * dim), slice(start, stop, step))
        return lambda y: y[where]
    if kind == "select" and rank > 1:
        dim = rng.randrange(rank)
        place = rng.randrange(x.shape[dim])
        return lambda y: y.select(dim, place)
    if kind == "unsqueeze" and rank < 6:
        dim = rng.randint(0, rank)
        return lambda y: y.unsqueeze(dim)
    if kind == "squeeze":
        return lambda y: y.squeeze()
    if kind == "expand" and rank < 5 and x.numel() < 200:
        return lambda y: y.expand(2, *y.shape)
    if kind == "flip" and rank:
        dim = rng.randrange(rank)
        return lambda y: y.flip(dim)
    shape = random_shape(rng, x.numel())
    return lambda y: y.reshape(shape)


@pytest.mark.parametrize("seed", range(120))
def test_chain(seed):
    rng = random.Random(seed)
    x = torch.arange(120.0).reshape(random_shape(rng, 120))
    if rng.random() < 0.5:
        x = x.permute(rng.sample(range(x.dim()), x.dim()))
    steps, y = [], x
    for _ in range(rng.randint(1, 6)):
        step = random_step(rng, y)
        steps.append(step)
        y = step(y)

    def chain(z):
        for step in steps:
            z = step(z)
        return z

    check(chain, x)
    check(lambda z: chain(z * 2) + 1, x)
