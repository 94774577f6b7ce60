"""Tensors that are given other memory between forward and backward: what eager saves itself sees it, views do not."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn

import lampwork
from lampwork.runtime import autograd


@pytest.fixture(autouse=True, params=["nodes of our own", "compiled backward"])
def strategy(request, monkeypatch):
    """Each test runs with a first backward that is eager's, and with backwards that are compiled before the first."""
    monkeypatch.setattr(autograd, "AHEAD", request.param == "compiled backward")


def both(make):
    """What `make(transform)` gives for eager and compiled."""
    return make(lambda f: f), make(lampwork.compile)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: x * x,
        lambda x, w: x @ w,
        lambda x, w: torch.addmm(w, x, w.t()),
        lambda x, w: (x * w.t()).exp() * w,
        lambda x, w: x.exp() + w,
        lambda x, w: torch.nn.functional.linear(x, w) * x[0],
    ],
)
@pytest.mark.parametrize("moved", ["x", "w", "both"])
@pytest.mark.parametrize("closed_over", [False, True])
def test_data_replaced_before_backward(fn, moved, closed_over):
    def make(transform):
        torch.manual_seed(0)
        w = torch.randn(3, 3, requires_grad=True)
        bound = transform(lambda x: fn(x, w))
        free = transform(fn)
        gradients = []
        for _ in range(2):
            x = torch.randn(3, 3, requires_grad=True)
            y = bound(x) if closed_over else free(x, w)
            for tensor, name in ((x, "x"), (w, "w")):
                if moved in (name, "both"):
                    tensor.data = torch.full((3, 3), 5.0)
            w.grad = None
            y.sum().backward()
            gradients += [x.grad, w.grad]
        return gradients

    for a, b in zip(*both(make), strict=True):
        torch.testing.assert_close(b, a)


def test_a_module_of_another_dtype_before_backward():
    def make(transform):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        run = transform(model)
        gradients = []
        for _ in range(3):
            model.float().zero_grad()
            x = torch.ones(3, 4, requires_grad=True)
            y = run(x)
            model.double()
            y.sum().backward()
            gradients += [x.grad, *(parameter.grad for parameter in model.parameters())]
        return gradients

    for a, b in zip(*both(make), strict=True):
        torch.testing.assert_close(b, a)
