"""Strides of pointwise results where the operands' dtypes differ: TensorIterator casts before it looks at strides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch

from lampwork.graph import shapes_pointwise as rules
from lampwork.graph.spec import TensorSpec

DTYPES = (torch.float32, torch.float64, torch.int32)
PAIRS = {
    "add": (rules.binary, torch.add),
    "div": (rules.binary_float, torch.div),
    "eq": (rules.compare, torch.eq),
    "where": (
        lambda a, b: rules.where(TensorSpec.of(torch.ones(3, 4, dtype=torch.bool)), a, b),
        lambda a, b: torch.where(torch.ones(3, 4, dtype=torch.bool), a, b),
    ),
    "addcmul": (lambda a, b: rules.ternary(a, b, b), lambda a, b: torch.addcmul(a, b, b)),
}


def views(dtype: torch.dtype) -> Iterator[torch.Tensor]:
    yield torch.ones(4, 3, dtype=dtype).T
    yield torch.ones(3, 4, dtype=dtype)
    yield torch.ones(3, 1, dtype=dtype).expand(3, 4)
    yield torch.ones(1, 4, dtype=dtype).expand(3, 4)
    yield torch.ones(4, 6, dtype=dtype)[:, ::2].T
    yield torch.ones(4, dtype=dtype)
    yield torch.ones((), dtype=dtype)


@pytest.mark.parametrize("name", PAIRS)
def test_strides_are_torchs(name: str) -> None:
    rule, function = PAIRS[name]
    for first, second in product(DTYPES, DTYPES):
        for a, b in product(views(first), views(second)):
            try:
                expected = function(a, b)
            except RuntimeError:
                continue
            found = rule(TensorSpec.of(a), TensorSpec.of(b))
            assert (found.shape, found.strides, found.dtype) == (
                expected.shape,
                expected.stride(),
                expected.dtype,
            ), (first, a.stride(), second, b.stride())
