"""Training of recurrent layers: compiled forward and backward against eager, all gradients."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import lampwork
from lampwork.loops.ir.nodes import RecurrenceGradient
from lampwork.lower import recurrent_gradient
from lampwork.runtime import autograd

EXACT = {torch.float32: 2e-5, torch.float64: 1e-11}


@dataclass(frozen=True)
class Case:
    """`read`: which of the results the loss depends on."""

    kind: str
    dtype: torch.dtype = torch.float32
    layers: int = 1
    both: bool = False
    batch_first: bool = False
    bias: bool = True
    given: bool = False
    dropout: float = 0.0
    read: tuple[int, ...] = (0, 1, 2)
    steps: int = 5
    batch: int = 3
    units: int = 9

    def module(self) -> torch.nn.RNNBase:
        torch.manual_seed(1)
        own = {"nonlinearity": "relu"} if self.kind == "relu" else {}
        made = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(self.kind, torch.nn.RNN)
        return made(
            4,
            self.units,
            self.layers,
            bias=self.bias,
            batch_first=self.batch_first,
            dropout=self.dropout,
            bidirectional=self.both,
            dtype=self.dtype,
            **own,
        )

    def inputs(self) -> list[torch.Tensor]:
        """The input, and the first states if they are given."""
        torch.manual_seed(2)
        outer = (self.batch, self.steps) if self.batch_first else (self.steps, self.batch)
        state = (self.layers * (1 + self.both), self.batch, self.units)
        shapes = [(*outer, 4), *([state] * (1 + (self.kind == "lstm")) if self.given else [])]
        return [torch.randn(shape, dtype=self.dtype) for shape in shapes]


def train(case: Case, call, module: torch.nn.Module) -> list[torch.Tensor | None]:
    """The results of one call, and the gradients of its inputs and of the module's parameters."""
    inputs = [each.requires_grad_() for each in case.inputs()]
    module.zero_grad()
    torch.manual_seed(3)
    x, *states = inputs
    if case.kind == "lstm" and states:
        out, last = call(x, tuple(states))
    else:
        out, last = call(x, *states)
    results = [out, *(last if isinstance(last, tuple) else (last,))]
    loss = torch.zeros((), dtype=case.dtype)
    for number, result in enumerate(results):
        if number in case.read:
            loss = (
                loss
                + (result * torch.linspace(-1, 1, result.numel(), dtype=case.dtype).view(result.shape)).sum()
            )
    loss.backward()
    return [*results, *(each.grad for each in (*inputs, *module.parameters()))]


def check(case: Case) -> None:
    module = case.module()
    wanted = train(case, module, module)
    compiled = lampwork.compile(module)
    for _ in range(3):
        found = train(case, compiled, module)
        for got, want in zip(found, wanted, strict=True):
            assert (got is None) == (want is None)
            if got is not None and want is not None:
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want, rtol=EXACT[case.dtype], atol=EXACT[case.dtype])
    assert not lampwork.explain(compiled).function.records, "backward runs forward again"


@pytest.fixture(autouse=True, params=["second backward", "first backward"])
def when(request, monkeypatch):
    """The backward from which on networks are trained in kernels."""
    monkeypatch.setattr(autograd, "AHEAD", request.param == "first backward")
    return request.param


KINDS = ("lstm", "gru", "tanh", "relu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_one_layer(kind: str, dtype: torch.dtype):
    check(Case(kind, dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_in_both_directions(kind: str):
    check(Case(kind, torch.float64, layers=2, both=True, batch_first=True, given=True))
    check(Case(kind, torch.float32, layers=2, both=True, bias=False))


@pytest.mark.parametrize("kind", KINDS)
def test_results_that_are_not_read(kind: str):
    for read in ((0,), (1,), (2,) if kind == "lstm" else (1,)):
        check(Case(kind, torch.float64, layers=2, given=True, read=read))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_draws_what_eager_draws(kind: str):
    check(Case(kind, layers=3, dropout=0.4))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_of_one(kind: str):
    check(Case(kind, torch.float64, steps=1, batch=1, units=1, given=True))


def test_frozen_parameters():
    case = Case("lstm", torch.float64, layers=2)
    module = case.module()
    module.weight_hh_l0.requires_grad_(False)
    module.bias_ih_l1.requires_grad_(False)
    wanted = train(case, module, module)
    compiled = lampwork.compile(module)
    for _ in range(2):
        for got, want in zip(train(case, compiled, module), wanted, strict=True):
            assert (got is None) == (want is None)
            if got is not None:
                torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_projections_are_eager():
    module = torch.nn.LSTM(4, 8, proj_size=3)
    compiled = lampwork.compile(module)
    x = torch.randn(5, 3, 4)
    found = []
    for call in (module, compiled, compiled):
        module.zero_grad()
        call(x)[0].square().sum().backward()
        found.append([p.grad.clone() for p in module.parameters()])
    for got, want in zip(found[2], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_numbers_that_are_none():
    case = Case("lstm", torch.float32)
    module = case.module()
    compiled = lampwork.compile(module)
    x = case.inputs()[0]
    x[1, 0, 2], x[0, 1, 0] = float("nan"), float("inf")
    found = []
    for call in (module, compiled, compiled):
        module.zero_grad()
        call(x)[0].sum().backward()
        found.append([p.grad.clone() for p in module.parameters()])
    for got, want in zip(found[2], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_second_backward_raises_as_eager():
    compiled = lampwork.compile(Case("lstm").module())
    x = Case("lstm").inputs()[0]
    for _ in range(2):
        loss = compiled(x)[0].sum()
        loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_of_gradients_are_eager():
    case = Case("gru", torch.float64, layers=2)
    module = case.module()
    compiled = lampwork.compile(module)
    x = case.inputs()[0].requires_grad_()
    found = []
    for call in (module, compiled, compiled):
        (first,) = torch.autograd.grad(call(x)[0].square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [x, *module.parameters()]))
    for got, want in zip(found[2], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_and_direction_is_a_kernel(kind: str, when: str, monkeypatch):
    made = []

    def counted(*args, **kwargs):
        made.append(RecurrenceGradient(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(recurrent_gradient, "RecurrenceGradient", counted)
    # Equal programs are compiled once: the sizes are those of no other test.
    check(Case(kind, layers=2, both=True, units=len(when)))
    assert len(made) == 4
