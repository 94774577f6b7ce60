"""Gradients of products of elements: those that eager finds with zeros, infinities and NaN among them."""

from __future__ import annotations

import math

import pytest
import torch

import lampwork


@pytest.fixture(autouse=True)
def reset():
    lampwork.reset_stats()


FUNCTIONS = {
    "all": lambda x: x.prod(),
    "rows": lambda x: x.prod(-1),
    "columns": lambda x: x.prod(0),
    "kept": lambda x: x.prod(1, keepdim=True),
    "named": lambda x: torch.prod(x * 2, dim=1),
    "in float64": lambda x: x.prod(1, dtype=torch.float64),
}
SHAPES = [(4, 5), (1, 7), (6, 1), (0, 3), (3, 0), (2, 3, 4), (40, 70)]


def gradients(fn, x: torch.Tensor, given: torch.Tensor):
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    result = fn(leaf)
    result.backward(given.to(result.dtype))
    return result.detach(), leaf.grad


def held_to_eager(fn, x: torch.Tensor) -> None:
    compiled = lampwork.compile(fn, options={"strict": True})
    given = torch.randn(fn(x).shape)
    for _ in range(3):
        got = gradients(compiled, x, given)
    exact = gradients(fn, x.double(), given.double())
    for ours, wanted, eager in zip(got, exact, gradients(fn, x, given)):
        assert ours.stride() == eager.stride() and ours.dtype == eager.dtype
        torch.testing.assert_close(ours.double(), wanted.double(), rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_without_zeros(name: str, shape: tuple[int, ...]) -> None:
    if name not in ("all", "columns", "rows") and 0 in shape:
        return
    torch.manual_seed(0)
    held_to_eager(FUNCTIONS[name], torch.rand(shape) + 0.5)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("other", [1.0, -0.0, math.nan, math.inf])
def test_with_zeros(name: str, other: float) -> None:
    """None, one, two in a row or column, and whatever else among them."""
    torch.manual_seed(0)
    x = torch.randn(6, 6) + 2
    x[0, 1] = x[2, 2] = x[2, 4] = x[3, 4] = 0
    x[0, 3] = x[2, 5] = x[4, 0] = other
    held_to_eager(FUNCTIONS[name], x)
    held_to_eager(FUNCTIONS[name], x.t())


def test_it_is_a_pass_over_the_elements() -> None:
    x = torch.rand(8, 16).requires_grad_()
    compiled = lampwork.compile(lambda x: x.prod(1).sum(), options={"strict": True})
    for _ in range(2):
        compiled(x).backward()
    assert "cumprod" not in compiled.stages.forward + compiled.stages.backward


def test_second_derivatives_go_through_zeros() -> None:
    def second(fn, x):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(fn(x).square().sum(), x, create_graph=True)
        return first.detach(), torch.autograd.grad((first * first.detach().cos()).sum(), x)[0]

    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    x[0, 1] = x[1, 0] = x[1, 2] = 0
    fn = FUNCTIONS["rows"]
    compiled = lampwork.compile(fn, options={"strict": True})
    for _ in range(3):
        for ours, eager in zip(second(compiled, x), second(fn, x)):
            torch.testing.assert_close(ours, eager)
