"""Writes to parts of complex tensors, and second gradients of Fourier transforms, whose formulas make such writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lampwork


def sliced(x: Tensor) -> Tensor:
    z = torch.zeros(4, 3, dtype=x.dtype)
    z[1:3] = x * x
    z[:, 0].mul_(2j)
    return z


def stepped(x: Tensor) -> Tensor:
    z = torch.ones(3, 6, dtype=x.dtype)
    z[-2:, ::2] = x
    return z * z


def diagonal(x: Tensor) -> Tensor:
    z = x.repeat(2, 1) * 1j
    z.diagonal(1).copy_(x[0, :2])
    return z


def transposed(x: Tensor) -> Tensor:
    z = torch.zeros(3, 2, dtype=x.dtype)
    z.t()[-1] = x[0].conj()
    return z * 3


@pytest.mark.parametrize("function", [sliced, stepped, diagonal, transposed])
def test_parts_of_complex_tensors(function: Callable[[Tensor], Tensor]) -> None:
    compiled = lampwork.compile(function)
    for _ in range(3):
        x = torch.randn(2, 3, dtype=torch.complex128, requires_grad=True)
        want, have = function(x), compiled(x)
        torch.testing.assert_close(have, want)
        given = torch.randn_like(want)
        torch.testing.assert_close(*(torch.autograd.grad(result, x, given)[0] for result in (have, want)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.fft.rfft(x).abs().square(),
        lambda x: torch.fft.irfft(torch.fft.rfft(x.tanh())).pow(3),
        lambda x: torch.fft.hfft(x.to(torch.complex128)).pow(3),
        lambda x: torch.fft.ihfft(x).real.pow(3),
    ],
)
def test_gradients_of_gradients_of_fourier_transforms(function: Callable[[Tensor], Tensor]) -> None:
    compiled = lampwork.compile(function)
    for seed in range(4):
        found: list[Tensor] = []
        for called in (function, compiled):
            torch.manual_seed(seed)
            x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
            (first,) = torch.autograd.grad(called(x).sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.cos().sum(), x)[0])
        torch.testing.assert_close(*found)
