"""`torch.autograd.Function`s whose forward is captured: what their context is asked for, and what they give."""

from __future__ import annotations

import pytest
import torch

import lampwork

X = torch.arange(6.0).reshape(2, 3)


def test_methods_of_the_context_of_an_autograd_function(monkeypatch):
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 3

        @staticmethod
        def backward(ctx, grad):
            return grad * 3

    compiled = lampwork.compile(lambda x: Tripled.apply(x))
    assert torch.equal(compiled(X), X * 3)
    monkeypatch.delattr(torch.autograd.function.FunctionCtx, "save_for_backward")
    with pytest.raises(AttributeError, match="save_for_backward"):
        compiled(X)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_argument_that_an_autograd_function_marks_dirty_and_returns(requires_grad):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(2)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    def looks(fn):
        x = X.clone().requires_grad_(requires_grad)
        with torch.no_grad():
            y = fn(x)
        return (
            y is x,
            y.requires_grad,
            y.is_leaf,
            y._version,
            x._version,
            y.data_ptr() == x.data_ptr(),
            y.tolist(),
        )

    compiled = lampwork.compile(lambda x: Doubled.apply(x))
    assert looks(compiled) == looks(compiled) == looks(Doubled.apply)
