"""A matrix times a single column."""

from __future__ import annotations

import pytest
import torch

import lampwork


@pytest.mark.parametrize("fn", [torch.mm, torch.matmul], ids=["mm", "matmul"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 33, 300])
@pytest.mark.parametrize("depth", [1, 31, 32, 257])
def test_against_float64(fn, dtype, rows, depth):
    torch.manual_seed(rows + depth)
    for x in (
        torch.randn(rows, depth),
        torch.randn(depth, rows).t(),
        torch.randn(2 * rows, depth + 3)[::2, 3:],
    ):
        for column in (torch.randn(depth, 1), torch.randn(depth, 5)[:, 2:3]):
            x, column = x.to(dtype), column.to(dtype)
            result, eager = lampwork.compile(fn, options={"strict": True})(x, column), fn(x, column)
            exact = x.double() @ column.double()
            assert result.shape == eager.shape and result.stride() == eager.stride()
            error, theirs = ((y.double() - exact).abs().max() for y in (result, eager))
            scale = (x.double().abs() @ column.double().abs()).max()
            assert error <= 2 * theirs + torch.finfo(dtype).eps * scale


def test_a_long_column_is_not_packed():
    compiled = lampwork.compile(torch.mm, options={"strict": True})
    compiled(torch.randn(64, 64), torch.randn(64, 1))
    assert "for m < 1, n < 64" in compiled.stages.definitions


def test_nothing_is_nothing():
    for rows, depth in ((0, 40), (3, 0)):
        x, column = torch.randn(rows, depth), torch.randn(depth, 1)
        assert torch.equal(lampwork.compile(torch.mm)(x, column), x @ column)
