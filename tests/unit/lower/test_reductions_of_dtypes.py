"""Sums and products in another dtype than that of the argument: eager converts elements first, whatever they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
INF, NAN = float("inf"), float("nan")
NUMBERS = torch.tensor(
    [0.5, 2, 1, INF, 3e9, -3e9, 70000, -0.5, NAN, -INF, 1e20, 0, 256, 300], dtype=torch.float64
)


def _arguments(source: torch.dtype) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    if source not in FLOATS:
        return [torch.randint(-(2**40), 2**40, (3, size), generator=draw).to(source) for size in (1, 2, 40)]
    numbers = [NUMBERS[torch.randint(len(NUMBERS), (3, size), generator=draw)] for size in (1, 2, 3, 5)]
    return [each.to(source) for each in (*numbers, torch.randn(3, 33, generator=draw))]


@pytest.mark.parametrize("wanted", (*FLOATS, *WHOLE), ids=str)
def test_elements_are_converted_first(wanted: torch.dtype) -> None:
    def sums(x: Tensor) -> tuple[Tensor, ...]:
        along = x.cumsum(1, dtype=wanted) if wanted is not torch.bool else x  # which eager has no cumsum of
        return x.sum(dtype=wanted), x.sum(1, dtype=wanted), along

    def products(x: Tensor) -> tuple[Tensor, ...]:
        return x.prod(dtype=wanted), x.prod(1, dtype=wanted)

    def mean(x: Tensor) -> Tensor:
        return x.mean(1, dtype=wanted)

    half: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2} if wanted in FLOATS[:2] else {}
    for program in (sums, products, *([mean] if wanted in FLOATS else [])):
        compiled = lampwork.compile(program)
        for source in (*FLOATS, *WHOLE):
            for x in _arguments(source):
                torch.testing.assert_close(compiled(x), program(x), equal_nan=True, **half)


def test_partial_products_overflow_in_float16() -> None:
    def product(x: Tensor) -> Tensor:
        return x.prod(-2, True, dtype=torch.float16)

    x = torch.randint(-9, 9, (33, 33)).t()
    torch.testing.assert_close(lampwork.compile(product)(x), product(x), equal_nan=True)
