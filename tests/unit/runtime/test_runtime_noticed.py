"""What eager notices between forward and backward is noticed: errors, hooks and gradients of both are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lampwork
from lampwork.runtime import autograd

Transform = Callable[[Any], Any]


@pytest.fixture(autouse=True, params=["first backward", "compiled backward"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "AHEAD", request.param == "compiled backward")


def _outcome(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except RuntimeError as error:
        return str(error).split(" is at version")[0]


def _agree(make: Callable[[Transform], Any]) -> Any:
    found: list[Any] = []
    for transform in (lambda function: function, lampwork.compile):
        torch.manual_seed(0)
        found.append(make(transform))
    torch.testing.assert_close(found[1], found[0]) if isinstance(found[0], Tensor) else None
    assert isinstance(found[0], Tensor) or found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: x.zero_(),
        lambda x, y: x.fill_(2),
        lambda x, y: x.copy_(y),
        lambda x, y: x.mul_(y),
        lambda x, y: torch.add(y, 1, out=x),
    ],
    ids=["zero_", "fill_", "copy_", "mul_", "out"],
)
def test_a_region_that_writes_what_it_has_saved(write: Callable[[Tensor, Tensor], Any]) -> None:
    def make(transform: Transform) -> Any:
        w = torch.randn(20, 20, requires_grad=True)

        @transform
        def loss(x: Tensor, y: Tensor) -> Tensor:
            z = (x * w).sin()
            write(x, y)
            return z.sum()

        results = [loss(torch.randn(20, 20), torch.randn(20, 20)) for _ in range(2)]
        return [_outcome(result.backward) for result in results]

    assert "modified by an inplace operation" in _agree(make)[0]


@pytest.mark.parametrize("written", [False, True])
def test_statistics_of_a_batch_norm(written: bool) -> None:
    def make(transform: Transform) -> Any:
        norm = nn.BatchNorm1d(8)
        net = transform(nn.Sequential(nn.Linear(8, 8), norm))
        found: list[Any] = []
        for _ in range(3):
            loss = net(torch.randn(16, 8)).square().sum() + net(torch.randn(16, 8)).sum()
            if written:
                norm.running_mean.zero_()
            found.append(_outcome(loss.backward))
        return found

    outcomes = _agree(make)
    assert ("modified by an inplace operation" in str(outcomes[0])) == written


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_hooks_of_states_that_nobody_reads(kind: type[nn.RNNBase]) -> None:
    def make(transform: Transform) -> Any:
        layer = kind(4, 8, 2)
        net = transform(layer)
        found: list[Any] = []
        for _ in range(3):
            y, state = net(torch.randn(5, 3, 4))
            tensors = (y, *(state if isinstance(state, tuple) else (state,)))
            for number, tensor in enumerate(tensors):
                tensor.register_hook(lambda grad, number=number: found.append((number, grad is None)))
            y.sum().backward()
        return found

    _agree(make)


def test_batched_gradients_of_a_dropout() -> None:
    def make(transform: Transform) -> Any:
        w = torch.randn(20, 20, requires_grad=True)
        drop = transform(lambda x: F.dropout(x * w, 0.5))
        grads = torch.randn(3, 20, 20)
        drop(torch.ones(20, 20)).sum().backward()
        (found,) = torch.autograd.grad(drop(torch.ones(20, 20)), w, grads, is_grads_batched=True)
        return found + torch.rand(1)

    _agree(make)


def test_what_is_written_to_a_detached_result_is_seen() -> None:
    def make(transform: Transform) -> Any:
        w = torch.randn(20, 20, requires_grad=True)

        @transform
        def both(x: Tensor) -> tuple[Tensor, Tensor]:
            h = (x * w).exp()
            return h.detach(), (h * h).sum()

        for _ in range(3):
            w.grad = None
            detached, loss = both(torch.full((20, 20), 0.1))
            detached.data[3] = 0.5
            loss.backward()
        return w.grad

    _agree(make)
