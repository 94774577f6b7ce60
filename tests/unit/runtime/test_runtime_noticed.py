"""What eager notices between forward and backward is noticed: errors, hooks and gradients of both are compared."""

from __future__ import annotations

import subprocess
import sys
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


_WHOLE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "copy_": lambda b, x: b.copy_(x[0]),
    "slice": lambda b, x: b.__setitem__(slice(None), x[1]),
    "fill_": lambda b, x: b.fill_(1.5),
    "zero_": lambda b, x: b.zero_(),
    "cast": lambda b, x: b.copy_(x[0].float()),
    "out": lambda b, x: torch.add(x[0], 1, out=b),
    "view": lambda b, x: b.view(3, 1).copy_(x[0].view(3, 1)),
    "index": lambda b, x: b.index_put_((torch.tensor([0, 2]),), x[0, :2]),
    "bernoulli_": lambda b, x: b.bernoulli_(0.5),
}
_LATER: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda b: None,
    "mul_": lambda b: b.mul_(2),
    "item": lambda b: b.__setitem__(1, 4.0),
    "detached": lambda b: b.detach().fill_(3),
    "data": lambda b: b.data.mul_(2),
}


@pytest.mark.parametrize("again", [False, True], ids=["once", "called again"])
@pytest.mark.parametrize("later", _LATER)
@pytest.mark.parametrize("write", _WHOLE)
def test_a_buffer_that_the_region_overwrites_and_then_uses(write: str, later: str, again: bool) -> None:
    """What it saves of the buffer must not be written before backward, by the caller or by the next call. A write
    through `.data` goes unnoticed, and eager computes with it."""

    def make(transform: Transform) -> Any:
        b, w = torch.zeros(3).double(), torch.randn(3).double().requires_grad_()

        @transform
        def used(x: Tensor) -> Tensor:
            _WHOLE[write](b, x.detach())
            return (x * b).sin() * w

        found: list[Any] = []
        for _ in range(3):
            x = torch.randn(4, 3).double().requires_grad_()
            losses = [used(x).sum()] + ([used(x * 2).sum()] if again else [])
            _LATER[later](b)
            total = torch.stack(losses).sum()
            outcome = _outcome(lambda total=total, x=x: torch.autograd.grad(total, [x, w]))
            found.append(
                outcome if isinstance(outcome, str) else [grad.round(decimals=9).tolist() for grad in outcome]
            )
        return found

    outcomes = _agree(make)
    assert isinstance(outcomes[0], str) == (later not in ("nothing", "data") or again)


_OF_SEVERAL_WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: x.sort(1)[0],
    "qr": lambda x: torch.linalg.qr(x)[1],
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "fft": lambda x: torch.fft.fft(x).abs(),
    "written": lambda x: x.sort(1)[0].add_(1).mul_(2),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", _OF_SEVERAL_WRITES.values(), ids=_OF_SEVERAL_WRITES)
def test_versions_of_results_do_not_count_what_operators_do_inside(
    function: Callable[[Tensor], Tensor], requires_grad: bool
) -> None:
    def make(transform: Transform) -> Any:
        run, found = transform(function), []
        for _ in range(3):
            y = run(torch.randn(4, 6, requires_grad=requires_grad))
            found.append(y._version)
            if requires_grad:
                y.sum().backward()
        return found

    _agree(make)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.complex64, torch.int32])
def test_what_the_message_calls_a_saved_tensor(dtype: torch.dtype) -> None:
    def make(transform: Transform) -> Any:
        def product(x: Tensor, saved: Tensor) -> Tensor:
            return x.masked_fill(saved, 0) if dtype is torch.bool else (x * saved).abs()

        run, found = transform(product), []
        for _ in range(2):
            x, saved = torch.randn(3, requires_grad=True), torch.ones(3).to(dtype)
            loss = run(x, saved).float().sum()
            saved.zero_()
            found.append(_outcome(loss.backward))
        return found

    assert "modified by an inplace operation: [" in _agree(make)[0]


def test_an_error_in_backward_leaves_nothing_for_the_end_of_the_interpreter() -> None:
    """What was left in autograd's queue is released when the thread ends, which is after Python has."""
    code = """
import lampwork, torch
b, w = torch.zeros(3), torch.ones(3, requires_grad=True)
@lampwork.compile
def used(x):
    b.copy_(x.detach()[0])
    return (x * b).sin() * w
for _ in range(3):
    x = torch.ones(4, 3, requires_grad=True)
    losses = torch.stack([used(x).sum(), used(x).sum()])
    b.mul_(2)
    try:
        torch.autograd.grad(losses.sum(), [x, w])
    except RuntimeError:
        print("raised")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["raised"] * 3)
