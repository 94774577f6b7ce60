"""torch.vmap in a region: arithmetic is captured as it stands, everything else is left to torch."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan

import lampwork
from lampwork.errors import GraphBreakError


def combine(left, right):
    a_left, b_left = left
    a_right, b_right = right
    return a_left * a_right, a_right * b_left + b_right


def scanned(a, b):
    return associative_scan(combine, (a, b), dim=1, combine_mode="generic")


def mapped(a, b):
    return torch.vmap(lambda x, y: (x + y) * 2 - y / x)(a, b)


def closed_over(a, b):
    scale = a.sum()
    return torch.vmap(lambda x, y: x * scale + y)(a, b)


def looks_at_shapes(a, b):
    return torch.vmap(lambda x, y: x * x.shape[0] + y)(a, b)


def reduces(a, b):
    return torch.vmap(lambda x, y: x.sum() + y)(a, b)


def matmul(a, b):
    return torch.vmap(lambda x, y: x @ y)(a, b)


def other_dims(a, b):
    return torch.vmap(lambda x, y: x * y, in_dims=(1, 0))(a, b.t())


def other_shapes(a, b):
    return torch.vmap(lambda x, y: x * y)(a, b[:, 0])


def writes(a, b):
    def inplace(x, y):
        x *= y
        return x

    return torch.vmap(inplace)(a.clone(), b)


def gives_back(a, b):
    return torch.vmap(lambda x, y: (x, x + y))(a, b)[0] * 2


A, B = torch.rand(4, 6) + 1, torch.rand(4, 6) + 1


@pytest.mark.parametrize("fn", [scanned, mapped], ids=lambda fn: fn.__name__)
def test_arithmetic_is_captured(fn):
    torch.testing.assert_close(lampwork.compile(fn, fullgraph=True)(A, B), fn(A, B))


@pytest.mark.parametrize(
    "fn",
    [
        closed_over,
        looks_at_shapes,
        reduces,
        matmul,
        other_dims,
        other_shapes,
        writes,
        gives_back,
    ],
    ids=lambda fn: fn.__name__,
)
def test_the_rest_is_left_to_torch(fn):
    torch.testing.assert_close(lampwork.compile(fn)(A, B), fn(A, B))
    with pytest.raises(GraphBreakError) as raised:
        lampwork.compile(fn, fullgraph=True)(A, B)
    assert raised.value.code == "LW105"
    assert raised.value.cause == (
        "torch.vmap() of more than arithmetic on tensors of one shape changes state of torch that a graph cannot hold"
    )
