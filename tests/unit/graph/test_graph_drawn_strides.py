"""Strides of what eager computes in steps or over more dimensions, of tensors in any order, with gaps, expanded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lampwork.graph import shapes
from lampwork.graph.shapes_nn import rms_norm
from lampwork.graph.spec import TensorSpec

aten = torch.ops.aten


def _drawn(draw: random.Random, shape: Sequence[int]) -> Tensor:
    order = draw.sample(range(len(shape)), len(shape))
    gap = draw.random() < 0.3
    memory = torch.zeros([shape[dim] for dim in order] + [2] * gap).to(
        draw.choice((torch.float32, torch.float64, torch.bfloat16, torch.float16))
    )
    x = (memory[..., 0] if gap else memory).permute([order.index(dim) for dim in range(len(shape))])
    return x[:1].expand(shape) if draw.random() < 0.2 else x


def _spec(x: Tensor) -> TensorSpec:
    return TensorSpec(tuple(x.shape), x.stride(), x.dtype, x.device)


def test_root_mean_square_norms() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        x = _drawn(draw, [draw.choice((0, 1, 1, 2, 2, 3)) for _ in range(draw.randint(1, 5))])
        over = list(x.shape[draw.randrange(x.dim()) :])
        weight = torch.ones(over, dtype=x.dtype) if draw.random() < 0.5 else None
        found = rms_norm(_spec(x), over, None if weight is None else _spec(weight))
        assert found.strides == F.rms_norm(x, over, weight).stride(), (
            x.shape,
            x.stride(),
            over,
            x.dtype,
            weight,
        )


POOLS = {
    aten.avg_pool1d.default: (2, 1),
    aten.max_pool1d.default: (2, 1),
    aten.adaptive_avg_pool1d.default: ([2],),
}


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_pools_over_one_dimension(pool: torch._ops.OpOverload) -> None:
    draw = random.Random(0)
    rule = shapes.own_rule(pool)
    assert rule is not None
    for _ in range(500):
        sizes = [draw.choice((1, 1, 2, 3, 6)) for _ in range(draw.randint(1, 2))]
        x = _drawn(draw, [*sizes, draw.choice((2, 3, 6))])
        pooled: Any = rule(_spec(x), *POOLS[pool])
        assert pooled.strides == pool(x, *POOLS[pool]).stride(), (x.shape, x.stride())
