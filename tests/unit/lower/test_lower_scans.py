"""Running extrema against eager bit by bit: places of the last of equal elements, nan, signs of zeros."""

from __future__ import annotations

import pytest
import torch
from bits import assert_as_eager, calls
from lower_harness import check
from scalar_target import native_on, target_named

import lampwork

torch.manual_seed(14)
NAN, INF = float("nan"), float("inf")


def tied(*shape, dtype=torch.float32):
    return torch.randint(-3, 4, shape).to(dtype)


def special(*shape):
    x = tied(*shape)
    for number in (NAN, INF, -INF, -0.0):
        x[torch.rand(shape) < 0.05] = number
    return x


PROGRAMS = {
    "cummax": lambda x: torch.cummax(x, 0),
    "cummin": lambda x: torch.cummin(x, 0),
    "in the middle": lambda x: (*torch.cummax(x.view(2, -1, 20), 1), *torch.cummin(x.view(2, -1, 20), -2)),
    "values": lambda x: x.cummax(0)[0] * 2,
    "places": lambda x: x.cummin(0)[1] + 1,
    "of what is computed": lambda x: torch.cummax(x[::2, 1:] * 2, 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops(name):
    assert not calls(PROGRAMS[name], torch.randn(8, 20))
    check(PROGRAMS[name], torch.randn(8, 20))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_as_eager(name, dynamic):
    for rows in (2, 6, 40):
        for x in (torch.randn(rows, 20), tied(rows, 20), special(rows, 20)):
            assert_as_eager(PROGRAMS[name], x, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32])
def test_dtypes(dtype):
    for name in ("cummax", "cummin"):
        assert not calls(PROGRAMS[name], tied(9, 33, dtype=dtype))
        assert_as_eager(PROGRAMS[name], tied(9, 33, dtype=dtype))


@pytest.mark.parametrize("isa", ["avx2", "sse4", "scalar"])
def test_other_machines(isa):
    x = special(30, 40)
    with native_on(target_named(isa)):
        found = lampwork.compile(PROGRAMS["cummax"], options={"strict": True})(x)
    for ours, theirs in zip(found, torch.cummax(x, 0), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_calls_of_aten():
    along_rows = lambda x: torch.cummax(x, 1)  # noqa: E731
    for fn, x in (
        (along_rows, torch.randn(8, 20)),
        (PROGRAMS["cummax"], torch.randn(20)),
        (PROGRAMS["cummax"], torch.randn(0, 20)),
        (PROGRAMS["cummax"], tied(9, 33, dtype=torch.uint8)),
        (lambda x: torch.cummax(x[0], 0), torch.randn(3)),
    ):
        assert "aten::cummax" in calls(fn, x)
        assert_as_eager(fn, x)
