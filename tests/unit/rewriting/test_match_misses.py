"""Why a pattern does not match: the way that came furthest, and what failed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphkit import find, record
from torch import Tensor

from lampwork.patterns import either, maybe, number, repeated, tensor
from lampwork.rewriting.apply.driver import rule_of
from lampwork.rewriting.matching.match import Miss, nearest_miss, nearest_miss_in

F = torch.nn.functional
X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


def pattern_of(fn: Callable[..., Any]) -> Any:
    return rule_of(fn, lambda: None, name="probe").pattern


def missed(pattern: Callable[..., Any], fn: Callable[..., Any], *inputs: Tensor) -> Miss | None:
    graph = record(fn, *inputs)
    root = next(n for n in graph.nodes if n.op == "output").args[0][0]
    return nearest_miss(pattern_of(pattern), root)


GELU = lambda x: x * 0.5 * (1 + torch.erf(x / 1.4142135623730951))  # noqa: E731


@pytest.mark.parametrize(
    ("pattern", "fn", "matched", "reason"),
    [
        (
            GELU,
            lambda x: x * 0.5 * (1 + torch.erf(x / 1.5)),
            5,
            "argument 'other' of div: expected 1.4142135623730951, got 1.5",
        ),
        (
            GELU,
            lambda x: x * 0.5 * (1 + torch.tanh(x)),
            3,
            "argument 'self' of add: expected erf, got tanh (float32[2, 3, 4])",
        ),
        (lambda x: torch.relu(x), lambda x: x + 1, 0, "expected relu, got add (float32[2, 3, 4])"),
        (
            lambda x: x * torch.sigmoid(x),
            lambda x: (x + 1) * torch.sigmoid(x),
            2,
            "argument 'self' of sigmoid: expected add (float32[2, 3, 4]) again for x, "
            "got placeholder (float32[2, 3, 4])",
        ),
        (
            lambda x=tensor(rank=4): torch.relu(x),
            torch.relu,
            1,
            "argument 'self' of relu: expected tensor of rank 4 for x, got placeholder (float32[2, 3, 4])",
        ),
        (
            lambda x=tensor(dtype=torch.float64, shape=(2, None, "d")): torch.relu(x),
            torch.relu,
            1,
            "argument 'self' of relu: expected float64[2, _, d] for x, got placeholder (float32[2, 3, 4])",
        ),
        (
            lambda x=tensor(), c=number(where=lambda c: c > 0): x * c,
            lambda x: x * -3,
            1,
            "argument 'other' of mul: the predicate of c says no to -3",
        ),
        (lambda x: x.softmax(-1), lambda x: x.softmax(1), 1, "argument 'dim' of softmax: expected dim -1, got 1"),
        (lambda x: torch.relu(x), lambda x: torch.relu(torch.rand_like(x)), None, ""),
        (
            lambda x: torch.exp(torch.dropout(x, 0.5, True)),
            lambda x: torch.exp(torch.dropout(x, 0.5, True)),
            1,
            "argument 'self' of exp: dropout is random or has an effect",
        ),
    ],
)  # fmt: skip
def test_reason(
    pattern: Callable[..., Any], fn: Callable[..., Any], matched: int | None, reason: str
) -> None:
    miss = missed(pattern, fn, X)
    if matched is None:
        assert miss is None
        return
    assert miss is not None
    assert (miss.matched, miss.reason) == (matched, reason)


def test_the_furthest_of_several_ways_counts() -> None:
    """The operands of the add in the order that the graph has, the option that came further."""
    miss = missed(
        lambda x, y: torch.exp(torch.relu(x)) + y.tanh(), lambda x: x.cos() + torch.exp(torch.sigmoid(x)), X
    )
    assert miss is not None and miss.matched == 2
    assert miss.reason.startswith("argument 'self' of exp: expected relu, got sigmoid")
    miss = missed(lambda x: either(x.tanh(), torch.exp(x.relu())), lambda x: torch.exp(x.abs()), X)
    assert miss is not None and miss.node is not None and miss.node.name == "exp"
    miss = missed(
        lambda x: maybe(torch.relu, repeated(torch.exp, x.neg())), lambda x: x.exp().exp().relu(), X
    )
    assert miss is not None and miss.matched == 3
    assert miss.reason == "argument 'self' of exp: expected neg, got placeholder (float32[2, 3, 4])"


def test_the_nearest_miss_in_a_graph() -> None:
    graph = record(lambda x: (x * 0.5 * (1 + torch.erf(x / 1.5)) + 1).relu() * 2, X)
    miss = nearest_miss_in(pattern_of(GELU), graph)
    assert miss is not None and miss.node is find(graph, "div") and miss.matched == 5
    assert str(miss).endswith("at div (5 nodes matched before)")
    assert nearest_miss_in(pattern_of(lambda x: torch.relu(x)), graph) is None


def test_a_missing_output() -> None:
    graph = record(lambda x: (F.relu(x), x.exp()), X)
    miss = nearest_miss(pattern_of(lambda x: (torch.relu(x), torch.tanh(x))), find(graph, "relu"))
    assert miss is not None and miss.reason == "no node near is output 1 of the pattern: expected tanh"
