"""Attention in pieces as it is lowered, by the reference evaluator; and what the verifier holds its logarithms to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.nodes import Attention
from lampwork.loops.ir.verify import verify_definitions


@pytest.mark.parametrize("columns", [2048, 4099])
def test_pieces_are_what_the_reference_puts_together(columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    q, k, v = (torch.randn(1, 2, n, 8, generator=generator) for n in (1, columns, columns))
    mask = torch.rand(1, 2, 1, columns, generator=generator) < 0.5
    mask[:, 0, :, 1000:] = False
    mask[:, 1] = False
    lowered = check(F.scaled_dot_product_attention, q, k, v, mask)
    found = [each for each in lowered.definitions if isinstance(each, Attention)]
    assert len(found) == (2 if columns % 2 else 1)
    assert all(each.logs for each in found)


def test_logarithms_need_a_column_of_their_own() -> None:
    q, k, v = (torch.randn(1, 1, n, 8) for n in (1, 2048, 2048))
    lowered = check(F.scaled_dot_product_attention, q, k, v)
    (number,) = (n for n, each in enumerate(lowered.definitions) if isinstance(each, Attention))
    attention = lowered.definitions[number]
    assert isinstance(attention, Attention)
    narrow = replace(attention.out, shape=(*attention.out.shape[:-1], attention.e.extent))
    with pytest.raises(InvalidLoopsError, match="no column for logarithms"):
        verify_definitions([*lowered.definitions[:number], replace(attention, out=narrow)])
