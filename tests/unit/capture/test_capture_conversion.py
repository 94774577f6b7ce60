"""Modules that are converted inside the region to what they already are, and gradients that are not there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lampwork
from lampwork.errors import GraphBreakError


class Converted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        self.layer = self.layer.to(x.dtype)
        return self.layer(x)


X = torch.randn(2, 3)


def test_a_conversion_that_changes_nothing_is_captured():
    model = Converted()
    compiled = lampwork.compile(model, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
    assert len(lampwork.compile(model)._lampwork_compiled.entries) == 0
    assert len(compiled._lampwork_compiled.entries) == 1


def test_a_conversion_that_changes_something_is_left_to_torch():
    model, twin = Converted(), Converted()
    twin.load_state_dict(model.state_dict())
    compiled = lampwork.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X.double()), twin(X.double()))
    assert model.layer.weight.dtype is torch.float64


def test_the_absence_of_a_gradient_is_guarded():
    weight = nn.Parameter(torch.ones(3))

    def fn(x):
        return x * weight if weight.grad is None else x - weight.grad

    compiled = lampwork.compile(fn)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), fn(X))
        weight.grad = torch.full((3,), 2.0)
        torch.testing.assert_close(compiled(X), X - 2)
        with pytest.raises(GraphBreakError) as raised:
            lampwork.compile(fn, fullgraph=True)(X)
        assert raised.value.code == "LW116"
        assert raised.value.cause == "reading .grad of a tensor runs autograd inside the region"
        weight.grad = None
        torch.testing.assert_close(compiled(X), X)


def test_other_writes_to_data_break():
    def fn(x):
        y = x + 1
        y.data = x
        return y

    with pytest.raises(GraphBreakError) as raised:
        lampwork.compile(fn, fullgraph=True)(X)
    assert raised.value.cause == "the attribute 'data' of a tensor is set"
