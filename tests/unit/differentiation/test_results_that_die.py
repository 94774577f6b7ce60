"""A result that backward reads too is not kept alive by it: who never calls backward has its memory back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork
from lampwork.runtime import autograd, heap_bytes

WEIGHT = torch.randn(64, 64, requires_grad=True)
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "result": lambda x: (x @ WEIGHT).tanh(),
    "view of it": lambda x: (x @ WEIGHT).tanh().view(-1, 2, 32),
    "two": lambda x: ((h := x @ WEIGHT), h.sin()),
    "three": lambda x: ((h := (x @ WEIGHT).exp()), (h @ WEIGHT).tanh(), h.sum()),
    "in place": lambda x: (x @ WEIGHT).mul_(2).tanh_(),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_freed_without_a_backward(
    name: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(autograd.DifferentiableCall, "_run_native", lambda self, tensors: None)
    compiled = lampwork.compile(FUNCTIONS[name])
    x = torch.randn(512, 64, requires_grad=True)

    def loss() -> Tensor:
        given = compiled(x)
        results = given if isinstance(given, tuple) else (given,)
        return sum((result.sum() for result in results), torch.zeros(()))

    for _ in range(3):
        loss().backward()
    loss()
    before = heap_bytes()
    for _ in range(5):
        loss()
    assert heap_bytes() == before


def test_what_a_formula_saved_of_its_result_stays() -> None:
    """`y.data = other` gives the caller's tensor other memory, not what backward has."""

    def function(x: Tensor) -> Tensor:
        return (x @ WEIGHT).tanh()

    compiled = lampwork.compile(function)
    for _ in range(4):
        gradients: list[Tensor] = []
        for called in (function, compiled):
            x = torch.linspace(-1, 1, 128).view(2, 64).clone().requires_grad_()
            y = called(x)
            y.data = y.data * 2
            gradients.append(torch.autograd.grad(y.sum(), x)[0])
        torch.testing.assert_close(gradients[1], gradients[0])
