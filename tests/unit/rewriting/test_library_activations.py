"""Formulas of activations become their ops; twins that look like them stay."""

from __future__ import annotations

import math

import pytest
import torch
from librarykit import assert_becomes, assert_stays

F = torch.nn.functional

ROOT = math.sqrt(2 / math.pi)


def values(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of all sizes, with what is special; their cubes are finite."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(90, generator=generator) * torch.logspace(-6, 4, 90)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-20, 3.0, -3.0, 20.0, 88.0])
    return torch.cat([wide, special]).reshape(10, 10).to(dtype)


GELU = {
    "BERT": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "halved first": lambda x: 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5))),
    "distribution": lambda x: x * (0.5 * (1 + torch.erf(x / 1.4142135623730951))),
    "halved last": lambda x: x * (1 + torch.erf(x * 0.7071067811865476)) / 2,
    "halved by division": lambda x: (x / 2) * (torch.erf(x / math.sqrt(2)) + 1),
    "distribution divided": lambda x: (torch.erf(x / math.sqrt(2)) + 1) / 2.0 * x,
}
TANH = {
    "GPT-2": lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "products": lambda x: x * 0.5 * (1 + torch.tanh(ROOT * (x + 0.044715 * x * x * x))),
    "square": lambda x: x * 0.5 * (1 + torch.tanh(ROOT * x * (1 + 0.044715 * x * x))),
    "power": lambda x: x * (0.5 * (1 + torch.tanh(x * (ROOT * (1 + 0.044715 * x**2))))),
    "multiplied out": lambda x: x * (1 + torch.tanh(ROOT * x + (ROOT * 0.044715) * x**3)) / 2,
}
FAST = lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))  # noqa: E731


@pytest.mark.parametrize("spelling", GELU)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gelu_by_erf(spelling: str, dtype: torch.dtype) -> None:
    ctx = assert_becomes(GELU[spelling], F.gelu, [values(dtype)])
    assert ctx.hits["gelu_by_erf"] == 1


@pytest.mark.parametrize("spelling", TANH)
def test_gelu_by_tanh(spelling: str) -> None:
    ctx = assert_becomes(TANH[spelling], lambda x: F.gelu(x, approximate="tanh"), [values()])
    assert ctx.hits["gelu_by_tanh"] == 1


def test_constants_are_as_exact_as_the_dtype_can_tell() -> None:
    assert_becomes(FAST, lambda x: F.gelu(x, approximate="tanh"), [values()])
    refused = assert_stays(FAST, [values(torch.float64)])
    assert any("the tanh is of 0.7978845608 x^1" in why for _, why in refused)


TWINS = {
    "another root": lambda x: x * 0.5 * (1 + torch.erf(x / 1.41)),
    "another half": lambda x: x * 0.6 * (1 + torch.erf(x / math.sqrt(2))),
    "minus": lambda x: x * 0.5 * (torch.erf(x / math.sqrt(2)) - 1),
    "two": lambda x: x * 0.5 * (2 + torch.erf(x / math.sqrt(2))),
    "another tensor": lambda x: x * 0.5 * (1 + torch.erf(x.flip(0) / math.sqrt(2))),
    "another cubic": lambda x: x * 0.5 * (1 + torch.tanh(ROOT * (x + 0.045 * x**3))),
    "a fourth power": lambda x: x * 0.5 * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3 * x))),
    "gelu's inside kept": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))) + torch.erf(x / math.sqrt(2)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "mish by log": lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
    "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu of two": lambda x: x * torch.sigmoid(x.flip(0)),
    "softplus that overflows": lambda x: torch.log(1 + torch.exp(x)),
    "mish of another softplus": lambda x: x * torch.tanh(F.softplus(x, 2)),
    "relu6 of another shift": lambda x: x * F.relu6(x + 2) / 6,
    "relu5": lambda x: x * torch.clamp(x + 3, 0, 5) / 6,
    "clamp at one": lambda x: torch.clamp(x, min=1),
    "threshold below": lambda x: torch.where(x < 20, x, torch.log1p(torch.exp(x))),
}


@pytest.mark.parametrize("twin", TWINS)
def test_what_only_looks_like_it_stays(twin: str) -> None:
    assert_stays(TWINS[twin], [values()])


OTHERS = {
    "silu": (lambda x: x * torch.sigmoid(x), F.silu),
    "silu by exp": (lambda x: x / (1 + torch.exp(-x)), F.silu),
    "silu by all": (lambda x: x * (1 / (1 + torch.exp(-x))), F.silu),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), F.mish),
    "mish by log1p": (lambda x: x * torch.tanh(torch.log1p(torch.exp(x))), F.mish),
    "hardswish": (lambda x: x * F.relu6(x + 3) / 6, F.hardswish),
    "hardswish by clamp": (lambda x: x * torch.clamp(x + 3, 0, 6) / 6, F.hardswish),
    "hardsigmoid": (lambda x: F.relu6(x + 3) / 6, F.hardsigmoid),
    "relu": (lambda x: torch.clamp(x, min=0), F.relu),
    "softplus": (lambda x: torch.relu(x) + torch.log1p(torch.exp(-x.abs())), F.softplus),
    "softplus by where": (
        lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(x))),
        lambda x: F.softplus(x, 1, 20),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_activations(name: str) -> None:
    formula, op = OTHERS[name]
    assert_becomes(formula, op, [values()])


def test_softplus_in_float64_stays() -> None:
    assert_stays(OTHERS["softplus"][0], [values(torch.float64)])


def test_integers_stay() -> None:
    assert_stays(lambda x: torch.clamp(x, min=0), [torch.arange(-3, 3)])
