"""bucketize and searchsorted against eager: ties, nan, boundaries out of order, rows."""

from __future__ import annotations

import pytest
import torch
from bits import assert_as_eager, calls
from hypothesis import given, settings
from hypothesis import strategies as st

torch.manual_seed(12)
NAN, INF = float("nan"), float("inf")
BOUNDS = torch.tensor([-INF, -1.5, 0.0, 0.0, 0.25, 2.0, INF, NAN])
VALUES = torch.tensor([[NAN, -INF, INF, -0.0, 0.0], [0.25, 0.3, -1.5, 7.0, -7.0]])

OWN = {
    "bucketize": (lambda b, x: torch.bucketize(x, b), (BOUNDS, VALUES)),
    "bucketize right": (lambda b, x: torch.bucketize(x, b, right=True), (BOUNDS, VALUES)),
    "int32 out": (lambda b, x: torch.bucketize(x, b, out_int32=True), (BOUNDS, VALUES)),
    "searchsorted": (torch.searchsorted, (BOUNDS, VALUES)),
    "side": (lambda b, x: torch.searchsorted(b, x, side="right"), (BOUNDS, VALUES)),
    "transposed": (lambda b, x: torch.bucketize(x.t(), b[::2]), (BOUNDS, VALUES)),
    "computed": (lambda b, x: torch.bucketize(x * 2, b + 1).float() / 2, (BOUNDS, VALUES)),
    "out of order": (lambda b, x: torch.bucketize(x, b), (torch.randn(37), torch.randn(400))),
    "rows": (torch.searchsorted, (torch.randn(3, 2, 9).sort().values, torch.randn(3, 2, 300))),
    "rows from the right": (
        lambda b, x: torch.searchsorted(b, x, right=True),
        (torch.randint(0, 9, (4, 9)).sort().values, torch.randint(-1, 10, (4, 5))),
    ),
    "one boundary": (lambda b, x: torch.bucketize(x, b), (BOUNDS[2:3], VALUES)),
    "a number": (lambda b, x: torch.bucketize(x[0, 3], b), (BOUNDS, VALUES)),
    "no boundaries": (lambda b, x: torch.bucketize(x, b), (BOUNDS[:0], VALUES)),
    "no values": (lambda b, x: torch.bucketize(x, b), (BOUNDS, VALUES[:0])),
}
ATEN = {
    "half precision": (lambda b, x: torch.bucketize(x, b), (BOUNDS.half(), VALUES.half())),
    "sorter": (
        lambda b, x: torch.searchsorted(b, x, sorter=b.argsort()),
        (torch.randn(17), torch.randn(40)),
    ),
}


@pytest.mark.parametrize("name", OWN | ATEN)
@pytest.mark.parametrize("dynamic", [None, True])
def test_as_eager(name, dynamic):
    fn, inputs = (OWN | ATEN)[name]
    assert_as_eager(fn, *inputs, dynamic=dynamic)


@pytest.mark.parametrize("name", OWN)
def test_own(name):
    fn, inputs = OWN[name]
    assert calls(fn, *inputs) == ["lampwork::searchsorted"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random(data):
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32]))
    size, count = data.draw(st.integers(1, 300)), data.draw(st.integers(0, 700))
    bounds = torch.randint(-50, 50, (size,)).to(dtype).sort().values
    values = torch.randint(-60, 60, (count,)).to(dtype)
    right, small = data.draw(st.booleans()), data.draw(st.booleans())
    assert_as_eager(lambda b, x: torch.bucketize(x, b, right=right, out_int32=small), bounds, values)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_few_boundaries(dtype, right):
    """As many as are compared with every value where they are sorted, and some more."""
    values = torch.randint(-9, 9, (301,)).to(dtype)
    if dtype.is_floating_point:
        values[::7], values[1::7], values[2::7], values[3::7] = NAN, INF, -INF, -0.0
    for size in range(1, 19):
        bounds = torch.randint(-9, 9, (size,)).to(dtype)
        ordered = bounds.sort().values
        undefined = ordered.clone()
        if dtype.is_floating_point:
            undefined[size // 2] = NAN
        for each in (ordered, bounds, undefined):
            assert_as_eager(lambda b, x: torch.bucketize(x, b, right=right), each, values)
