"""Tensors that known objects hold and that differ from call to call are inputs of a version, not a new version each."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import lampwork
from lampwork.api import function_of

x = torch.randn(3)


class Attribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x
        return self.h.sin()


class Buffer(Attribute):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("h", torch.zeros(3))


class InDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = {"k": torch.zeros(3), "n": 0}
        self.buffers_ = [torch.zeros(3), torch.ones(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache["k"] = self.cache["k"] * 0.5 + x
        self.buffers_[0] = self.buffers_[0] + self.cache["k"]
        return self.buffers_[0] * self.buffers_[1]


class Growing(nn.Module):
    """Keys and values of all calls so far."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = x[None]
        self.keys = row if self.keys is None else torch.cat([self.keys, row])
        return (self.keys @ x).softmax(0) @ self.keys


def closure() -> Callable[[torch.Tensor], torch.Tensor]:
    state = SimpleNamespace(h=torch.zeros(3))
    cell = torch.zeros(3)

    def fn(x: torch.Tensor) -> torch.Tensor:
        nonlocal cell
        cell = cell + x
        state.h = state.h * 0.5 + cell
        return state.h * 2

    return fn


class Cell(nn.Module):
    """The state of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.LSTMCell(3, 3)
        self.state = (torch.zeros(3), torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = self.cell(x, self.state)
        return self.state[0]


class Step(NamedTuple):
    h: torch.Tensor
    decay: float


def cache() -> Callable[[torch.Tensor], torch.Tensor]:
    """Keys and values of two layers, in tuples of tuples; and a named tuple in a dict."""
    layers = [tuple((torch.zeros(0, 3), torch.zeros(0, 3)) for _ in range(2))]
    steps = {"last": Step(torch.zeros(3), 0.5)}

    def fn(x: torch.Tensor) -> torch.Tensor:
        row = x[None]
        layers[0] = tuple(
            (torch.cat([keys, row]), torch.cat([values, row * 2])) for keys, values in layers[0]
        )
        steps["last"] = Step(steps["last"].h * steps["last"].decay + x, 0.5)
        return layers[0][1][1].sum(0) * layers[0][0][0].sum(0) + steps["last"].h

    return fn


class Lists(nn.Module):
    """A list that is replaced, one in a list whose items are, and one that holds itself."""

    def __init__(self) -> None:
        super().__init__()
        self.state = [torch.zeros(3), torch.ones(3)]
        self.nested = [[torch.zeros(3)]]
        self.ring: list[Any] = [torch.zeros(3)]
        self.ring.append(self.ring)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state = [self.state[1] * 0.5 + x, self.state[0]]
        self.nested[0] = [self.nested[0][0] + self.state[0]]
        return self.nested[0][0] * self.state[1] + self.ring[0]


def shared_cell() -> Callable[[torch.Tensor], torch.Tensor]:
    state = (torch.zeros(3), torch.ones(3))

    def fn(x: torch.Tensor) -> torch.Tensor:
        nonlocal state
        state = (state[1] * 0.5 + x, state[0])
        return state[0] - state[1]

    return fn


MAKERS: dict[str, Callable[[], Callable[..., Any]]] = {
    "attribute": Attribute,
    "buffer": Buffer,
    "dict and list": InDict,
    "growing": Growing,
    "closure": closure,
    "tuple": Cell,
    "lists": Lists,
    "tuples in containers": cache,
    "tuple in a cell": shared_cell,
}


@pytest.mark.parametrize("name", MAKERS)
def test_state_makes_few_versions(name):
    twin = MAKERS[name]()
    compiled = lampwork.compile(MAKERS[name]())
    with torch.no_grad():
        for number in range(24):
            given = x * number
            torch.testing.assert_close(compiled(given), twin(given))
    owner = function_of(compiled)
    assert len(owner.recompiles) <= 4 and not owner.refused
    assert compiled.entries[-1].hits >= 19


def test_state_is_not_kept():
    model = Attribute()
    compiled = lampwork.compile(model)
    seen = []
    with torch.no_grad():
        for _ in range(12):
            compiled(x)
            seen.append(weakref.ref(model.h))
    gc.collect()
    # The state that the first version was made for is its own; of later ones only the last is alive.
    assert sum(each() is not None for each in seen[:-1]) <= 1


def test_a_tensor_that_the_user_replaces():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask = torch.ones(3)
            self.layer = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.mask

    model = Masked()
    compiled = lampwork.compile(model)
    with torch.no_grad():
        for number in range(20):
            model.mask = torch.full((3,), float(number))
            torch.testing.assert_close(compiled(x), model(x))
        model.mask = torch.ones(3, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(function_of(compiled).recompiles) == 2


def test_a_parameter_that_is_replaced():
    model = nn.Linear(3, 3)
    compiled = lampwork.compile(model)
    with torch.no_grad():
        for number in range(20):
            model.weight = nn.Parameter(torch.full((3, 3), float(number)))
            torch.testing.assert_close(compiled(x), model(x))
    assert len(function_of(compiled).recompiles) == 2


def test_gradients_through_state():
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.h = torch.zeros(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = torch.tanh(self.layer(x) + self.h)
            return self.h

    model, twin = Cell(), Cell()
    twin.load_state_dict(model.state_dict())
    compiled = lampwork.compile(model)
    for _ in range(4):
        model.h, twin.h = torch.zeros(3), torch.zeros(3)
        for step in range(5):
            got, want = compiled(x * step), twin(x * step)
            torch.testing.assert_close(got, want)
        got.sum().backward()
        want.sum().backward()
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert len(compiled.entries) <= 4


def test_tied_weights_of_a_functional_call_may_be_untied_and_tied_again() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    net.forward = lambda x: net["b"](net["a"](x))
    tied = net["b"].weight = net["a"].weight

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, {"a.weight": torch.eye(3)}, (x,))

    compiled, x = lampwork.compile(fn), torch.randn(2, 3)
    for _ in range(3):
        for weight in (tied, nn.Parameter(torch.randn(3, 3))):
            net["b"].weight = weight
            torch.testing.assert_close(compiled(x), fn(x))
