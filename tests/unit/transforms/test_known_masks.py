"""Masks of attention on CUDA devices that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from devices import record_on, run_on_cpu
from graphkit import find, ops
from torch import Tensor, fx

import lampwork
from lampwork.backends.native.passes.known_masks import KnownMasks
from lampwork.graph.canonical_attention import TOLD
from lampwork.graph.recorded import Recorded
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.split_constants import SplitConstants

NAME = KnownMasks.name
MAKE = torch.Generator().manual_seed(0)
LENGTH = 6
ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def passed(
    mask: Callable[[Tensor], Tensor],
    dtype: torch.dtype = torch.float32,
    device: str = "cuda:0",
    told: bool = False,
    longer: int = 0,
    **given: Any,
) -> tuple[Recorded, PassContext]:
    """The graph of an attention with the mask that `mask` makes of the queries, after the pass; results are eager's.
    `told`: the program knows that it is compiled. `longer`: how many more keys than queries there are."""
    q = torch.randn(2, LENGTH, 3, 8, generator=MAKE).to(dtype)
    k, v = (torch.randn(2, LENGTH + longer, 3, 8, generator=MAKE).to(dtype) for _ in range(2))

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        operands = [each.transpose(1, 2) for each in (q, k, v)]
        return F.scaled_dot_product_attention(*operands, attn_mask=mask(operands[0]), **given) * 2

    recorded = record_on(fn, [q, k, v], [device] * 3)
    for node in recorded.graph.nodes:
        if node.target is ATTENTION and told:
            node.meta[TOLD] = True
    ctx = PassContext()
    for step in (SplitConstants(), KnownMasks(), DeadCode(), SplitConstants()):
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
    KnownMasks().run(graph, ctx)
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


def numbers_of_closed(q: Tensor) -> Tensor:
    return torch.where(closed(q), 0.0, -math.inf).to(q.dtype).expand(q.shape[0], 1, -1, -1)


def of_documents(q: Tensor) -> Tensor:
    """As libraries make it of positions that may begin again."""
    position = torch.arange(q.shape[2], device=q.device).expand(q.shape[0], -1)
    document = (position.diff(dim=-1, prepend=position.narrow(1, 0, 1) - 1) != 1).cumsum(-1)
    same = document.unsqueeze(2) == document.unsqueeze(1)
    return ((position.unsqueeze(1) <= position.unsqueeze(2)) & same).unsqueeze(1)


@pytest.mark.parametrize("mask", [closed, numbers_of_closed, of_documents], ids=lambda each: each.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_causal_masks_of_programs_that_know_become_a_flag(
    mask: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    recorded, ctx = passed(mask, dtype, told=True)
    assert ctx.hits == {NAME: 1} and not {"where", "arange", "tril"} & {*ops(recorded.graph)}
    assert find(recorded.graph, "scaled_dot_product_attention").args[3:6] == (None, 0.0, True)
    assert not passed(mask, dtype)[1].hits


def test_who_asks_whether_it_is_compiled_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole program, captured and compiled as for a card; the mask is made only where it is compiled."""
    met: list[Any] = []
    run = KnownMasks.run

    def on_card(step: KnownMasks, graph: fx.Graph, ctx: PassContext) -> None:
        met.append([node.meta.get(TOLD) for node in graph.nodes if node.target is ATTENTION])
        run(step, graph, ctx)

    monkeypatch.setattr(KnownMasks, "run", on_card)

    def fn(q: Tensor, asks: bool) -> Tensor:
        given = {"attn_mask": closed(q)} if not asks or torch.compiler.is_compiling() else {"is_causal": True}
        return F.scaled_dot_product_attention(q, q, q, **given)

    q = torch.randn(1, 2, LENGTH, 8)
    for asks in (True, False):
        torch.testing.assert_close(lampwork.compile(fn)(q, asks), fn(q, asks))
    assert met == [[True], [None]]


def shifted(q: Tensor) -> Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=q.device).tril(1)


def mildly_closed(q: Tensor) -> Tensor:
    return torch.where(closed(q), 0.0, -1e4).to(q.dtype)


def longer(q: Tensor) -> Tensor:
    return torch.ones(LENGTH, LENGTH + 2, dtype=torch.bool, device=q.device).tril()


OPEN = "a place may be closed"
LATER = "what comes later is closed, and nan there shows in eager"


@pytest.mark.parametrize(
    ("mask", "options", "why"),
    [
        (closed, {}, LATER),
        (
            closed,
            {"told": True, "scale": -1.0},
            "causal attention is another function of these sizes, or this scale",
        ),
        (
            closed,
            {"told": True, "dropout_p": 0.5},
            "it draws random numbers, which another kernel draws otherwise",
        ),
        (shifted, {"told": True}, OPEN),
        (mildly_closed, {"told": True}, OPEN),
        (longer, {"told": True, "longer": 2}, OPEN),
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
    KnownMasks().run(graph, ctx)
    assert not ctx.hits and [reason for _, reason in ctx.refusals] == ["a backend from outside takes it"]
