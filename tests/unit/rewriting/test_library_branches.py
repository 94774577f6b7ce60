"""Pieces put together again, and views undone: bit for bit, and only where nobody could tell."""

from __future__ import annotations

import pytest
import torch
from graphkit import assert_equal, ops, run
from librarykit import prepared, rewritten
from torch import Tensor

from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.transforms.common_subexpressions import CommonSubexpressions

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3))
Y = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(4))


def becomes(fn, expected: list[str], *inputs: Tensor):
    """The ops that are left of fn; its results are eager's bit for bit."""
    graph, ctx = rewritten(fn, inputs)
    assert ops(graph) == expected, dict(ctx.refusals)
    result = fn(*inputs)
    assert_equal(run(graph, *inputs), list(result) if isinstance(result, tuple) else [result])
    return ctx


CASES = {
    "split and cat": (lambda x: torch.cat(x.split(4, -1), -1).exp(), ["exp"]),
    "chunk and cat": (lambda x: torch.cat(x.chunk(3, 1), 1).exp(), ["exp"]),
    "slices and cat": (lambda x: torch.cat([x[..., :3], x[..., 3:]], -1).exp(), ["exp"]),
    "a run of slices": (
        lambda x: torch.cat([x[:, 1:2], x[:, 2:4], x[:, 4:5]], 1).exp(),
        ["slice", "exp"],
    ),
    "a run among others": (
        lambda x: torch.cat([x[:, :2], x[:, 2:4], x[:, :1]], 1).exp(),
        ["slice", "slice", "cat", "exp"],
    ),
    "an empty part": (lambda x: torch.cat([x, x[:, :0]], 1).exp(), ["exp"]),
    "unbind and stack": (lambda x: torch.stack(x.unbind(1), 1).exp(), ["exp"]),
    "cat and slice": (
        lambda x: torch.cat([x, x + 1], 1)[:, 6:].exp(),
        ["add", "exp"],
    ),
    "cat and part of a part": (
        lambda x: torch.cat([x + 1, x], 1)[:, 2:4].exp(),
        ["add", "slice", "exp"],
    ),
    "stack and select": (lambda x: torch.stack([x, x + 1], 1)[:, 1].exp(), ["add", "exp"]),
    "permute and back": (lambda x: x.transpose(1, 2).relu().transpose(1, 2).exp(), ["relu", "exp"]),
    "permutes of three": (
        lambda x: (x.permute(2, 0, 1).tanh() * 2).clamp(0, 1).permute(1, 2, 0).exp(),
        ["tanh", "mul", "clamp", "exp"],
    ),
    "view and back": (lambda x: torch.sigmoid(x.view(12, 8)).view(2, 6, 8).exp(), ["sigmoid", "exp"]),
    "unsqueeze and squeeze": (lambda x: x[:, :1].squeeze(1).unsqueeze(1).exp(), ["slice", "exp"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_does_nothing_goes(name: str) -> None:
    fn, expected = CASES[name]
    becomes(fn, expected, X)


TWINS = {
    "another order": (lambda x: torch.cat([x[..., 3:], x[..., :3]], -1).exp(), "cat"),
    "a gap": (lambda x: torch.cat([x[..., :3], x[..., 4:]], -1).exp(), "cat"),
    "another dimension": (lambda x: torch.cat([x[:, :3], x[:, 3:]], 0).exp(), "cat"),
    "twice the same": (lambda x: torch.cat([x, x], 1).exp(), "cat"),
    "steps": (lambda x: torch.cat([x[:, 0:4:2], x[:, 4:]], 1).exp(), "cat"),
    "not all of it": (lambda x: torch.stack([x[:, 0], x[:, 1]], 1).exp(), "stack"),
    "stacked elsewhere": (lambda x: torch.stack(x.unbind(1), 0).exp(), "stack"),
    "a slice over two parts": (lambda x: torch.cat([x, x + 1], 1)[:, 5:7].exp(), "cat"),
    "another permute": (lambda x: x.permute(2, 0, 1).relu().permute(2, 0, 1).exp(), "permute"),
    "a sum between": (lambda x: x.transpose(1, 2).softmax(-1).transpose(1, 2).exp(), "permute"),
    "read between": (
        lambda x: (lambda y: (y.transpose(1, 2).exp(), y.tan()))(x.transpose(1, 2).relu()),
        "permute",
    ),
    "another view": (lambda x: torch.sigmoid(x.view(12, 8)).view(6, 2, 8).exp(), "view"),
}


@pytest.mark.parametrize("name", TWINS)
def test_what_does_something_stays(name: str) -> None:
    fn, op = TWINS[name]
    graph, _ = rewritten(fn, [X])
    assert ops(graph) == ops(prepared(fn, [X])) and op in ops(graph)


def test_a_result_that_is_a_copy_remains_one() -> None:
    graph, ctx = rewritten(lambda x: torch.cat(x.split(4, -1), -1), [X])
    assert ops(graph)[-1] == "cat"
    assert any("same tensor" in why for _, why in ctx.refusals)


def test_a_result_that_is_a_view_remains_one() -> None:
    becomes(lambda x: (torch.cat([x + 1, x], 1)[:, :6],), ["add", "cat", "slice"], X)
    becomes(lambda x: x.transpose(1, 2).relu().transpose(1, 2), ["permute", "relu", "permute"], X)


def test_results_keep_eagers_strides() -> None:
    x = X.transpose(0, 2)
    rewritten(lambda x: torch.cat(x.split(2, 0), 0) + 1, [x])


def merged(fn, *inputs: Tensor) -> list[str]:
    graph = prepared(fn, inputs)
    CommonSubexpressions().run(graph, PassContext())
    verify(graph)
    result = fn(*inputs)
    assert_equal(run(graph, *inputs), list(result) if isinstance(result, tuple) else [result])
    return ops(graph)


def test_equal_sums_and_products_in_either_order_are_computed_once() -> None:
    assert merged(lambda x, y: (x * y) - (y * x), X, Y) == ["mul", "sub"]
    assert merged(lambda x, y: torch.maximum(x, y) / torch.maximum(y, x), X, Y) == ["maximum", "div"]
    assert merged(lambda x, y: ((x + y) - (y + x)).exp(), X, Y) == ["add", "sub", "exp"]


def test_what_may_not_be_exchanged_is_computed_twice() -> None:
    assert merged(lambda x, y: (x - y) * (y - x), X, Y) == ["sub", "sub", "mul"]
    added = lambda x, y: torch.add(x, y, alpha=2) * torch.add(y, x, alpha=2)  # noqa: E731
    assert merged(added, X, Y) == ["add", "add", "mul"]
    # The strides of the result are those of the first.
    assert merged(lambda x, y: (x + y.t()) + (y.t() + x).exp(), X[0], Y[0].t().contiguous())[:2] == [
        "permute",
        "add",
    ]


def test_results_that_are_equal_stay_two_tensors() -> None:
    assert merged(lambda x, y: (x + y, y + x), X, Y) == ["add", "add"]
