"""Affine grids against eager: by the reference, and by generated code on each instruction set."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check
from scalar_target import native_on, target_named
from test_lower_generated import check_table

import lampwork

torch.manual_seed(5)
THETA = torch.randn(3, 2, 3)

PLANE = {
    "plain": lambda t: F.affine_grid(t, [3, 1, 5, 7], align_corners=False),
    "corners": lambda t: F.affine_grid(t, [3, 4, 5, 7], align_corners=True),
    "wide": lambda t: F.affine_grid(t, [3, 1, 2, 40], align_corners=False),
    "one column": lambda t: F.affine_grid(t, [3, 1, 6, 1], align_corners=True),
    "one row": lambda t: F.affine_grid(t, [3, 1, 1, 6], align_corners=False),
    "one element": lambda t: F.affine_grid(t, [3, 1, 1, 1], align_corners=False),
    "one image": lambda t: F.affine_grid(t[:1], [1, 1, 4, 9], align_corners=False),
    "sliced": lambda t: F.affine_grid(t.mT.contiguous().mT, [3, 1, 4, 9], align_corners=False),
    "fused": lambda t: F.affine_grid(t.tanh(), [3, 1, 4, 9], align_corners=False) * 2 + 1,
    "volume": lambda t: F.affine_grid(
        torch.cat([t, t[:, :1]], 1)[..., [0, 1, 2, 0]], [3, 1, 3, 4, 5], align_corners=False
    ),
    "volume corners": lambda t: F.affine_grid(
        torch.cat([t, t[:, :1]], 1)[..., [0, 1, 2, 0]], [3, 1, 1, 4, 20], align_corners=True
    ),
}


@pytest.mark.parametrize("name", PLANE)
def test_loops(name):
    check(PLANE[name], THETA, scale=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_generated(dtype):
    check_table(PLANE, list(PLANE), [THETA.to(dtype)], 8)


def test_half_precision_is_a_call_of_aten():
    check(PLANE["plain"], THETA.bfloat16(), extern=True)


@pytest.mark.parametrize("isa", ["avx2", "sse4", "scalar"])
def test_other_machines(isa):
    def every(t):
        return [fn(t) for fn in PLANE.values()]

    with native_on(target_named(isa)):
        results = lampwork.compile(every, options={"strict": True})(THETA)
    for result, expected in zip(results, every(THETA), strict=True):
        torch.testing.assert_close(result, expected)
        assert result.stride() == expected.stride()


def test_what_is_not_finite_spreads_as_in_eager():
    theta = THETA.clone()
    theta[0, 0, 0], theta[1, 1, 2], theta[2, 0, 1] = float("nan"), float("inf"), float("inf")

    def grid(t):
        return F.affine_grid(t, [3, 1, 3, 5], align_corners=False)

    torch.testing.assert_close(
        lampwork.compile(grid, options={"strict": True})(theta), grid(theta), equal_nan=True
    )
