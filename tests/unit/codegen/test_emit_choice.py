"""Choices among rows, made before the loop along a row."""

from __future__ import annotations

import random

import pytest
import torch

import lampwork

WIDE = 64  # columns: several vectors on any machine


def compiled_llvm(fn, *inputs):
    compiled = lampwork.compile(fn, options={"strict": True})
    return compiled(*inputs), compiled.stages.llvm


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_a_concatenation(seed):
    rng = random.Random(seed)
    columns = rng.choice((1, 7, WIDE, WIDE + 3))
    pieces = [torch.randn(rng.choice((0, 1, 2, 5)), columns) for _ in range(rng.randint(2, 12))]
    result, _ = compiled_llvm(lambda *xs: torch.cat(xs), *pieces)
    assert torch.equal(result, torch.cat(pieces))


def test_a_row_of_a_concatenation_is_read_without_masks():
    pieces = [torch.randn(rows, WIDE) for rows in (3, 1, 4)]
    result, text = compiled_llvm(lambda *xs: torch.cat(xs), *pieces)
    assert torch.equal(result, torch.cat(pieces))
    assert "masked.load" not in text and "br i1" in text


def test_other_computations_are_kept():
    x, y = torch.randn(3, WIDE), torch.randn(2, WIDE)
    fn = lambda x, y: torch.cat([x, y.exp()])[1:4] * torch.arange(3)[:, None]  # noqa: E731
    result, _ = compiled_llvm(fn, x, y)
    torch.testing.assert_close(result, fn(x, y))


def test_a_choice_that_changes_along_the_row_stays_inside():
    x = torch.randn(WIDE, WIDE)
    for fn in (torch.tril, torch.triu, lambda x: torch.cat([x[:5].tril(), x])):
        result, _ = compiled_llvm(fn, x)
        assert torch.equal(result, fn(x))
