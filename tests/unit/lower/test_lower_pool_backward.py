"""Maxima with their places, and gradients of pools and of enlarged images, against eager."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check, externs
from test_lower_generated import check_table

from lampwork.loops.ir.nodes import Reduce

aten = torch.ops.aten
torch.manual_seed(13)
X = torch.randn(2, 9, 11, 13)
ROWS, LAST = torch.contiguous_format, torch.channels_last

# kernel, stride, padding, dilation, ceil_mode
WINDOWS = [
    (2, 2, 0, 1, False),
    (3, 2, 1, 1, False),
    (3, 2, 1, 1, True),
    (3, 1, 1, 1, False),
    (2, 3, 0, 1, False),
    (3, 2, 0, 2, False),
    (4, 3, 2, 1, True),
]


def both(value):
    return [value, value]


def maxima(window):
    k, s, p, d, ceil = window
    return lambda x: aten.max_pool2d_with_indices(x, both(k), both(s), both(p), both(d), ceil)


def max_gradient(window):
    k, s, p, d, ceil = window

    def gradient(x):
        values, places = aten.max_pool2d_with_indices(x, both(k), both(s), both(p), both(d), ceil)
        return aten.max_pool2d_with_indices_backward(
            values.sin(), x, both(k), both(s), both(p), both(d), ceil, places
        )

    return gradient


def average_gradient(window, include=True, divisor=None):
    k, s, p, _, ceil = window

    def gradient(x):
        g = F.avg_pool2d(x, k, s, p, ceil, include, divisor)
        return aten.avg_pool2d_backward(g, x, both(k), both(s), both(p), ceil, include, divisor)

    return gradient


def adaptive_gradient(*size):
    def gradient(x):
        return aten._adaptive_avg_pool2d_backward(F.adaptive_avg_pool2d(x, size), x)

    return gradient


def nearest_gradient(factor):
    def gradient(x):
        grown = [x.shape[2] * factor, x.shape[3] * factor]
        given = F.interpolate(x, scale_factor=factor).sin()
        return aten.upsample_nearest2d_backward(given, grown, list(x.shape))

    return gradient


SUMS = {f"max {w}": max_gradient(w) for w in WINDOWS}
SUMS |= {f"average {w}": average_gradient(w) for w in WINDOWS if w[3] == 1}
SUMS |= {f"average of what counts {w}": average_gradient(w, False) for w in WINDOWS if w[3] == 1}
SUMS["average by another number"] = average_gradient(WINDOWS[1], True, 5)
SUMS |= {f"adaptive {size}": adaptive_gradient(*size) for size in [(1, 1), (11, 13), (3, 5), (4, 1), (2, 20)]}
SUMS |= {f"nearest {factor}": nearest_gradient(factor) for factor in (1, 2, 4)}


@pytest.mark.parametrize("memory_format", [ROWS, LAST])
@pytest.mark.parametrize("window", WINDOWS)
def test_maxima_and_places(window, memory_format):
    check(maxima(window), X.contiguous(memory_format=memory_format))


SCATTERED = {f"max {w}" for w in WINDOWS if (w[0] - 1) * w[3] >= w[1]}
SCATTERED |= {f"adaptive {size}" for size in [(3, 5), (4, 1), (2, 20)]}


@pytest.mark.parametrize("name", SUMS)
def test_gradient_of_channels_last(name):
    """Where ATen's loop over the windows is the faster one, it runs."""
    check(SUMS[name], X.contiguous(memory_format=LAST), extern=name in SCATTERED, scale=8)


@pytest.mark.parametrize("name", [name for name in SUMS if name.startswith("a")])
def test_gradient_of_rows(name):
    check(SUMS[name], X, scale=8)


@pytest.mark.parametrize("size", [(3, 5), (11, 1), (5, 13), (11, 13), (2, 20), (23, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_averages_of_rows(size, dtype):
    """Rows are added as they lie, then a few places of the sums; their gradient goes the other way."""
    x = X.to(dtype)
    x[0, 0, 2, 3], x[1, 3, 10, 12] = math.nan, math.inf
    lowered = check(lambda x: F.adaptive_avg_pool2d(x, size), x, scale=8)
    along = [size[0] != X.shape[2], size[1] != X.shape[3]]
    assert sum(isinstance(each, Reduce) for each in lowered.definitions) == sum(along)
    if dtype is not torch.bfloat16:
        check(adaptive_gradient(*size), x, scale=8)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 1, 7), (0, 2, 5, 5), (3, 2, 5, 1)])
def test_averages_of_small_planes(shape):
    x = torch.randn(shape)
    for size in ((1, 1), (3, 2), (1, 4)):
        check(lambda x: F.adaptive_avg_pool2d(x, size), x, extern=not x.numel())


def test_maxima_of_rows_are_scattered_by_aten():
    lowered = check(max_gradient(WINDOWS[1]), X, extern=True)
    assert externs(lowered) == ["aten::max_pool2d_with_indices_backward.default"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [ROWS, LAST])
def test_generated(dtype, memory_format):
    table = {f"places {w}": maxima(w) for w in WINDOWS} | SUMS
    if dtype is torch.bfloat16:
        # Eager adds up averages of half types in the half type.
        table = {name: f for name, f in table.items() if not name.startswith(("average", "adaptive"))}
    check_table(table, list(table), [X.to(dtype, memory_format=memory_format)], 8)


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1.0])
@pytest.mark.parametrize("memory_format", [ROWS, LAST])
def test_equal_elements(value, memory_format):
    """Of equals the first place counts, of NaNs the last; of -inf the first that is no padding."""
    x = torch.full((1, 8, 6, 7), value)
    some = torch.where(torch.rand(1, 8, 6, 7) > 0.7, value, torch.randn(1, 8, 6, 7))
    for window in (WINDOWS[0], WINDOWS[2], WINDOWS[5]):
        for given in (x, some):
            given = given.contiguous(memory_format=memory_format)
            check(maxima(window), given)
            check_table({"": maxima(window)}, [""], [given])


def test_volumes():
    x = torch.randn(2, 3, 6, 5, 4)
    kernel, zero = [2] * 3, [0] * 3

    def model(x):
        values, places = aten.max_pool3d_with_indices(x, kernel, kernel)
        g = values.sin()
        return values, places, aten.avg_pool3d_backward(g, x, kernel, kernel, zero, False, True, None)

    check(model, x, scale=8)
    check_table({"": model}, [""], [x])
