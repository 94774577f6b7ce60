"""softmax along rows and columns, whose exponentials wait in scratch, against float64."""

from __future__ import annotations

import math
import random

import pytest
import torch
from scalar_target import native_on, target_named

import lampwork


def both(x, dim):
    return x.softmax(dim), x.log_softmax(dim)


def check(x, dim, isa):
    with native_on(target_named(isa)):
        compiled = lampwork.compile(lambda x: both(x, dim), options={"strict": True})
        results = compiled(x)
    for result, exact, eager in zip(results, both(x.double(), dim), both(x, dim), strict=True):
        assert torch.equal(result.isnan(), exact.isnan())
        scale, error, theirs = (
            each.abs().nan_to_num(0, 0, 0).max()
            for each in (exact, result.double() - exact, eager.double() - exact)
        )
        assert error <= 2 * theirs + 1e-6 * scale
    return compiled


@pytest.mark.parametrize("seed", range(6))
def test_any_dimension(isa, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    shape = [rng.choice((1, 2, 17, 40, 63, 64, 65, 129)) for _ in range(rng.choice((2, 3)))]
    x = torch.randn(shape) * 4
    if rng.random() < 0.5:
        x = x.transpose(0, -1)
    check(x, rng.randrange(x.dim()), isa)


@pytest.mark.parametrize("dim", [0, 1])
def test_what_is_not_finite(isa, dim):
    x = torch.randn(70, 130)
    x[3, 5], x[8, 66], x[9, 129] = math.nan, math.inf, -math.inf
    x[:, 2] = x[4, :] = -math.inf
    check(x, dim, isa)


def test_columns_are_computed_in_blocks_that_stay_in_the_cache(isa):
    compiled = check(torch.randn(300, 1000), 0, isa)
    block = 4 * target_named(isa).lanes("f32")
    assert f"scratch softmax_exp: f32[{300 * block}]" in compiled.stages.kernels
