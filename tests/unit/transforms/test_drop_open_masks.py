"""Masks of attention on CUDA devices that leave every place open."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import record_on, run_on_cpu
from graphkit import find, ops
from torch import Tensor

from lampwork.backends.native.passes.drop_open_masks import DropOpenMasks
from lampwork.graph.recorded import Recorded
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.split_constants import SplitConstants

NAME = DropOpenMasks.name
MAKE = torch.Generator().manual_seed(0)
LENGTH = 6


def passed(
    mask: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32, device: str = "cuda:0", **given: Any
) -> tuple[Recorded, PassContext]:
    """The graph of an attention with the mask that `mask` makes of the queries, after the pass; results are eager's."""
    q, k, v = (torch.randn(2, LENGTH, 3, 8, generator=MAKE).to(dtype) for _ in range(3))

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        operands = [each.transpose(1, 2) for each in (q, k, v)]
        return F.scaled_dot_product_attention(*operands, attn_mask=mask(operands[0]), **given) * 2

    recorded = record_on(fn, [q, k, v], [device] * 3)
    ctx = PassContext()
    for step in (SplitConstants(), DropOpenMasks(), DeadCode(), SplitConstants()):
        step.run(recorded.graph, ctx)
        verify(recorded.graph)
    if not given.get("dropout_p"):
        (found,) = run_on_cpu(recorded, [q, k, v])
        near = 2e-2 if dtype.itemsize == 2 else 1e-5
        torch.testing.assert_close(found, fn(q, k, v), rtol=near, atol=1e-2, equal_nan=True)
    return recorded, ctx


def of_positions(q: Tensor) -> Tensor:
    """As libraries make it while they are compiled: for any length, of nothing but positions."""
    row = torch.arange(q.shape[2], device=q.device).view(1, 1, -1, 1)
    return (row >= 0).expand(q.shape[0], -1, -1, q.shape[2])


def numbers(q: Tensor) -> Tensor:
    return torch.where(of_positions(q), 0.0, -math.inf).to(q.dtype)


def filled(q: Tensor) -> Tensor:
    return torch.zeros(LENGTH, LENGTH, dtype=q.dtype, device=q.device).masked_fill(
        torch.logical_not(of_positions(q)), -1e9
    )


@pytest.mark.parametrize("mask", [of_positions, numbers, filled], ids=lambda each: each.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_open_masks_go(mask: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    recorded, ctx = passed(mask, dtype, scale=0.25)
    assert ctx.hits == {NAME: 1}
    left = ops(recorded.graph)
    assert "where" not in left and "arange" not in left
    attention = find(recorded.graph, "scaled_dot_product_attention")
    assert attention.args[3] is None and attention.kwargs["scale"] == 0.25


def test_a_mask_of_many_elements_is_known_by_what_it_is_made_of() -> None:
    q = torch.randn(1, 1, 1, 8)

    def fn(q: Tensor) -> Tensor:
        mask = torch.where(
            (torch.arange(3000, device=q.device) >= 0).expand(8, 1, 3000, 3000), 0.0, -math.inf
        )
        q = q.expand(8, 1, 3000, 8)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    graph, ctx = record_on(fn, [q]).graph, PassContext()
    DropOpenMasks().run(graph, ctx)
    assert ctx.hits == {NAME: 1}


def closed(q: Tensor) -> Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=q.device).tril()


def bias(q: Tensor) -> Tensor:
    return torch.full((LENGTH, LENGTH), 0.5, dtype=q.dtype, device=q.device)


def nan(q: Tensor) -> Tensor:
    return torch.full((LENGTH, LENGTH), math.nan, dtype=q.dtype, device=q.device)


def of_data(q: Tensor) -> Tensor:
    return (q.narrow(3, 0, LENGTH) > -1e6) & True


def all_closed_as_numbers(q: Tensor) -> Tensor:
    """Zeros that become false."""
    return torch.zeros(LENGTH, LENGTH, dtype=q.dtype, device=q.device).to(torch.bool)


OPEN = "a place may be closed"


@pytest.mark.parametrize(
    ("mask", "options", "why"),
    [
        (closed, {}, OPEN),
        (bias, {}, OPEN),
        (nan, {}, OPEN),
        (of_data, {}, OPEN),
        (all_closed_as_numbers, {}, OPEN),
        (of_positions, {"device": "cpu"}, ""),
        (of_positions, {"dropout_p": 0.5}, "it draws random numbers, which another kernel draws otherwise"),
    ],
)
def test_what_stays(mask: Callable[[Tensor], Tensor], options: dict[str, Any], why: str) -> None:
    recorded, ctx = passed(mask, **options)
    assert not ctx.hits
    assert [reason for _, reason in ctx.refusals] == ([why] if why else [])
    assert find(recorded.graph, "scaled_dot_product_attention").args[3] is not None


def test_foreign_attention_stays() -> None:
    q = torch.randn(1, 2, LENGTH, 8)
    graph = record_on(lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=numbers(q)), [q]).graph
    ctx = PassContext(foreign=lambda node: True)
    DropOpenMasks().run(graph, ctx)
    assert not ctx.hits and [reason for _, reason in ctx.refusals] == ["a backend from outside takes it"]
