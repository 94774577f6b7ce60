"""Rotary embeddings in their spellings: what they become, that it is eager's result, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphkit import ops, record, run
from same_numbers import close
from torch import Tensor

from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import Rewriter
from lampwork.rewriting.library.rotary import rotary_rules
from lampwork.transforms.canonicalize import Canonicalize
from lampwork.transforms.common_subexpressions import CommonSubexpressions
from lampwork.transforms.dead_code import DeadCode
from lampwork.transforms.pipeline import run_passes
from lampwork.transforms.remove_noops import RemoveNoops
from lampwork.transforms.split_constants import SplitConstants


def rewritten(fn: Any, *inputs: Tensor, bound: tuple[Tensor, ...] = ()):
    graph = record(fn, *inputs, bound=bound)
    run_passes(
        graph, passes=(SplitConstants(), Canonicalize(), RemoveNoops(), CommonSubexpressions(), DeadCode())
    )
    ctx = PassContext()
    Rewriter(rotary_rules()).run(graph, ctx)
    return graph, ctx


def rotate_half(x: Tensor) -> Tensor:
    size = x.shape[-1] // 2
    return torch.cat((-x[..., size:], x[..., :size]), dim=-1)


def rotate_chunks(x: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


def rotate_every_two(x: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((-odd, even), dim=-1).flatten(-2)


def rotate_counted(x: Tensor) -> Tensor:
    """The last element at an odd place is no part of the even ones, named or not."""
    return torch.stack((-x[..., 1::2], x[..., :-1:2]), dim=-1).flatten(-2)


def rotate_unbound(x: Tensor) -> Tensor:
    even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((-odd, even), dim=-1).reshape(x.shape)


def halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def whole(rotate: Any):
    return lambda x, cos, sin: x * cos + rotate(x) * sin


def partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As GPT-NeoX: the rest of each head stays as it is."""
    turned, rest = x[..., :8], x[..., 8:]
    return torch.cat((turned * cos + rotate_half(turned) * sin, rest), dim=-1)


# name -> (function, size of a row, size of a row of the tables, op that is to go)
SPELLINGS: dict[str, Any] = {
    "rotate half": (whole(rotate_half), 8, 8, "cat"),
    "rotate chunks": (whole(rotate_chunks), 8, 8, "cat"),
    "table first": (lambda x, cos, sin: sin * rotate_half(x) + cos * x, 8, 8, "cat"),
    "halves": (halves, 8, 4, None),
    "every two": (whole(rotate_every_two), 8, 8, None),
    "counted": (whole(rotate_counted), 8, 8, None),
    "unbound": (whole(rotate_unbound), 8, 8, None),
    "pairs": (pairs, 8, 4, None),
    "partial": (partial, 12, 8, None),
}


@pytest.mark.parametrize("moved", [False, True], ids=["rows", "heads moved"])
@pytest.mark.parametrize("bound", [False, True], ids=["input", "buffer"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling(name: str, bound: bool, moved: bool) -> None:
    by_hand, size, width, gone = SPELLINGS[name]
    fn = (lambda x, c, s: by_hand(x.transpose(1, 2), c, s)) if moved else by_hand
    x = torch.randn(2, 5, 3, size) if moved else torch.randn(2, 3, 5, size)
    tables = (torch.randn(1, 1, 5, width), torch.randn(1, 1, 5, width))
    graph, ctx = rewritten(fn, x, *(() if bound else tables), bound=tables if bound else ())
    assert ctx.hits.total() == 1, ctx.refusals
    assert "neg" not in ops(graph) or gone is None
    close(fn, graph, x, *tables)


def test_half_becomes_a_roll() -> None:
    graph, _ = rewritten(lambda x, s: rotate_half(x) * s, torch.randn(2, 3, 5, 8), bound=(torch.randn(5, 8),))
    assert [n for n in ops(graph) if n != "slice"] == ["roll", "full", "full", "cat", "mul", "mul"]


def test_signs_of_zero_and_nan_are_eagers() -> None:
    x = torch.tensor([[0.0, -0.0, float("nan"), float("inf"), 1.0, -1.0, 0.0, -0.0]]).repeat(3, 1)
    table = torch.tensor([[0.0, 1.0, -1.0, -0.0, 2.0, 0.0, float("inf"), 1.0]])
    for rotate in (rotate_half, rotate_every_two):
        graph, ctx = rewritten(lambda x, s, rotate=rotate: rotate(x) * s, x, bound=(table,))
        got, want = run(graph, x, table)[0], rotate(x) * table
        assert ctx.hits.total() == 1
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(got[~got.isnan()]), torch.signbit(want[~want.isnan()]))


def turned_to_heads(x: Tensor, s: Tensor) -> Tensor:
    return torch.cat((-x[..., 4:], x[..., :4]), dim=-2) * s


def test_others_may_read_the_pieces() -> None:
    for rotate in (rotate_half, rotate_unbound):
        fn = lambda x, s, rotate=rotate: (rotate(x) * s, x[..., :4].exp(), x.view(3, 4, 2)[..., 1].exp())  # noqa: E731
        x, table = torch.randn(3, 8), torch.randn(8)
        graph, ctx = rewritten(fn, x, bound=(table,))
        assert ctx.hits.total() == 1
        for got, want in zip(run(graph, x, table), fn(x, table), strict=True):
            torch.testing.assert_close(got, want)


TWINS: dict[str, Any] = {
    "unequal pieces": lambda x, s: torch.cat((-x[..., 3:], x[..., :3]), -1) * s,
    "halves in order": lambda x, s: torch.cat((-x[..., :4], x[..., 4:]), -1) * s,
    "another tensor": lambda x, s: torch.cat((-x[..., 4:], x.exp()[..., :4]), -1) * s,
    "other dimension": turned_to_heads,
    "read twice": lambda x, s: (rotate_half(x) * s, rotate_half(x) + 1),
    "a table for each row": lambda x, s: rotate_half(x) * x,
    "a number for each row": lambda x, s: rotate_half(x) * x[..., :1],
    "broadcast rows": lambda x, s: rotate_half(x[:1]) * x.exp(),
    "not negated": lambda x, s: torch.cat((x[..., 4:], x[..., :4]), -1) * s,
    "odd first": lambda x, s: torch.stack((-x[..., ::2], x[..., 1::2]), -1).flatten(-2) * s,
    "odd rows": lambda x, s: torch.cat((-x[..., 4:7], x[..., :4]), -1) * s[:7],
    "a vector": lambda x, s: torch.stack((-x[0, 0, 1], x[0, 0, 0]), -1) * s[:2],
    "stacked in front": lambda x, s: torch.stack((-x[..., 1::2], x[..., ::2]), -2).flatten(-2) * s,
    "bfloat16": lambda x, s: rotate_half(x.bfloat16()) * s.bfloat16(),
}


@pytest.mark.parametrize("name", TWINS)
def test_twin_stays(name: str) -> None:
    x = torch.randn(2, 8, 8)
    table = torch.randn(8) if name != "other dimension" else torch.randn(16, 4)
    _, ctx = rewritten(TWINS[name], x, bound=(table,))
    assert not ctx.hits, ctx.hits
