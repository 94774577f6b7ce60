"""Norms in training and their gradients against eager and float64, by the reference and by generated code."""

from __future__ import annotations

import math

import pytest
import torch
from lower_harness import check, externs
from test_lower_generated import check_table

import lampwork

aten = torch.ops.aten
torch.manual_seed(7)
X, G = torch.randn(4, 6, 5, 7) * 2 + 0.5, torch.randn(4, 6, 5, 7)
W, B = torch.rand(6) + 0.5, torch.randn(6)
MEAN, VAR = torch.randn(6), torch.rand(6) + 0.5
ALL = [True, True, True]
TRAINED = (True, 0.1, 1e-5)


def layer(g, x, w, mask=ALL):
    wide, bias = w.new_ones(5, 7) * w[0], w.new_zeros(5, 7)
    _, mean, rstd = aten.native_layer_norm(x, [5, 7], wide, bias, 1e-5)
    return [
        r
        for r in aten.native_layer_norm_backward(g, x, [5, 7], mean, rstd, wide, bias, mask)
        if r is not None
    ]


def group(g, x, w, mask=ALL):
    _, mean, rstd = aten.native_group_norm(x, w, w, 4, 6, 35, 3, 1e-5)
    made = aten.native_group_norm_backward(g, x, mean, rstd, w, 4, 6, 35, 3, mask)
    return [r for r in made if r is not None]


def batch(g, x, w, mask=ALL):
    _, mean, rstd = aten._native_batch_norm_legit.no_stats(x, w, w, *TRAINED)
    made = aten.native_batch_norm_backward(g, x, w, None, None, mean, rstd, True, 1e-5, mask)
    return [r for r in made if r is not None]


NORMS = {
    "layer": lambda g, x, w, b, m, v: layer(g, x, w),
    "layer without parameters": lambda g, x, w, b, m, v: aten.native_layer_norm_backward(
        g, x, [7], x.mean(3, True), (x.var(3, keepdim=True) + 0.5).rsqrt(), None, None, [True, False, False]
    )[0],
    "layer, parameters alone": lambda g, x, w, b, m, v: layer(g, x, w, [False, True, True]),
    "group": lambda g, x, w, b, m, v: group(g, x, w),
    "group, input alone": lambda g, x, w, b, m, v: group(g, x, w, [True, False, False]),
    "batch": lambda g, x, w, b, m, v: batch(g, x, w),
    "batch, input alone": lambda g, x, w, b, m, v: batch(g, x, w, [True, False, False]),
    "batch, weight alone": lambda g, x, w, b, m, v: batch(g, x, w, [False, True, False]),
    "batch, bias alone": lambda g, x, w, b, m, v: batch(g, x, w, [False, False, True]),
    "batch, given statistics": lambda g, x, w, b, m, v: aten.native_batch_norm_backward(
        g, x, w, m, v, m[:0], v[:0], False, 1e-5, ALL
    ),
    "batch without weight": lambda g, x, w, b, m, v: aten.native_batch_norm_backward(
        g, x, None, None, None, m, v, True, 1e-5, [True, False, False]
    )[0],
    "batch forward": lambda g, x, w, b, m, v: aten._native_batch_norm_legit_functional(x, w, b, m, v, *TRAINED),
    "batch forward without statistics": lambda g, x, w, b, m, v: aten.native_batch_norm(
        x, w, b, None, None, *TRAINED
    ),
    "batch of rows": lambda g, x, w, b, m, v: aten.native_batch_norm_backward(
        g[:, :, 0, 0], x[:, :, 0, 0], w, None, None, m, v, True, 1e-5, ALL
    ),
    "batch after relu": lambda g, x, w, b, m, v: batch(aten.threshold_backward(g, x, 0), x, w),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_norm(name, memory_format):
    g, x = (t.contiguous(memory_format=memory_format) for t in (G, X))
    check(NORMS[name], g, x, W, B, MEAN, VAR, scale=16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_norms_generated(dtype, memory_format):
    inputs = [G.to(dtype, memory_format=memory_format), X.to(dtype, memory_format=memory_format)]
    check_table(NORMS, list(NORMS), [*inputs, *(t.to(dtype) for t in (W, B, MEAN, VAR))], 16)


def test_half_with_parameters_of_float32():
    inputs = [G.bfloat16(), X.bfloat16(), W, B, MEAN, VAR]
    names = ["group", "batch", "batch, given statistics", "batch forward"]
    check_table(NORMS, names, inputs, 16)
    # Eager adds the gradients of a layer's parameters up in bfloat16.
    exact = layer(G.bfloat16().double(), X.bfloat16().double(), W.double())
    with torch.no_grad():
        found = lampwork.compile(layer, options={"strict": True})(*inputs[:3])
    for ours, want in zip(found[1:], exact[1:], strict=True):
        torch.testing.assert_close(ours.double(), want, rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize(("function", "shape"), [(layer, (64, 96, 5, 7)), (batch, (32, 6, 40, 40))])
def test_errors_are_at_most_those_of_eager(function, shape):
    torch.manual_seed(3)
    g, x, w = torch.randn(shape), torch.randn(shape) + 2, torch.rand(6) + 0.5
    exact = function(g.double(), x.double(), w.double())
    with torch.no_grad():
        found = lampwork.compile(function, options={"strict": True})(g, x, w)
    for ours, eager, want in zip(found, function(g, x, w), exact, strict=True):
        size = want.abs().max()
        bound = 2 * (eager.double() - want).abs().max() / size + 1e-6
        assert (ours.double() - want).abs().max() / size <= bound


def test_not_a_number_stays():
    x = X.clone()
    x[1, 2, 3, 4] = torch.nan
    check(NORMS["layer"], G, x, W, B, MEAN, VAR, scale=16)
    check(NORMS["batch"], G, x, W, B, MEAN, VAR, scale=16)


def test_channels_in_rows_are_read_along_the_rows():
    """The parameters of a channel are read once for all of it, and do not count."""
    g, x = torch.randn(2, 64, 16, 16), torch.randn(2, 64, 16, 16)
    compiled = lampwork.compile(batch, options={"strict": True})
    with torch.no_grad():
        compiled(g, x, torch.ones(64))
    text = str(compiled.stages.kernels)
    assert "parallel-vector i1" not in text
    assert "reduce vector i3 < 256" in text


@pytest.mark.parametrize(("shape", "alone"), [((4, 256, 14, 14), True), ((1, 256, 3, 3), False)])
def test_columns_that_leave_the_cache_are_gone_down_by_reductions_alone(shape, alone):
    """Places that are a multiple of 4096 bytes apart share few lines of a cache."""
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)

    def norm(x):
        return torch.nn.functional.batch_norm(x, None, None, training=True)

    compiled = lampwork.compile(norm, options={"strict": True})
    torch.testing.assert_close(compiled(x), norm(x))
    assert ("which a cache does not keep" in str(compiled.stages.fusion)) == alone


def test_columns_that_scratch_keeps_are_gone_down_at_once():
    compiled = lampwork.compile(lambda x: x.softmax(1), options={"strict": True})
    compiled(torch.randn(1, 150, 64, 64))
    assert "which a cache does not keep" not in str(compiled.stages.fusion)


def test_statistics_that_are_written_behind_the_graph_stay_eager():
    lowered = check(
        lambda x, w: aten.native_batch_norm(x, w, w, MEAN.clone(), VAR.clone(), *TRAINED), X, W, extern=True
    )
    assert "aten::native_batch_norm.default" in externs(lowered)


@pytest.mark.parametrize("shape", [(3, 6, 7), (1, 6, 1), (2, 6, 3, 5), (5, 6), (1, 6, 2, 1, 3)])
@pytest.mark.parametrize("mask", [[True] * 3, [True, True, False], [False, True, True], [False, False, True]])
@pytest.mark.parametrize("weighted", [True, False])
def test_groups_of_all_shapes(shape, mask, weighted):
    """Channels are added up once for all three gradients, wherever the mean is; one that is not finite is NaN."""
    torch.manual_seed(0)
    x = torch.randn(shape) * 2 + 20
    x[0, 0] += math.inf
    g, w = torch.randn(shape), torch.randn(6) if weighted else None
    places = math.prod(shape[2:])

    def gradients(g, x, w):
        _, mean, rstd = aten.native_group_norm(x, w, w, shape[0], 6, places, 3, 1e-5)
        given = (shape[0], 6, places, 3, [mask[0], mask[1] and weighted, mask[2] and weighted])
        return aten.native_group_norm_backward(g, x, mean, rstd, w, *given)

    def wanted(g, x, *w):
        found = gradients(g, x, *w) if w else gradients(g, x, None)
        return tuple(each for each in found if each is not None)

    if not wanted(g, x, *([w] if weighted else [])):
        return
    compiled = lampwork.compile(wanted, options={"strict": True})
    inputs = [g, x, *([w] if weighted else [])]
    for ours, eager, exact in zip(compiled(*inputs), wanted(*inputs), wanted(*(t.double() for t in inputs))):
        allowed = 2 * (eager - exact).nan_to_num().abs().max().item() + 1e-5
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=allowed, equal_nan=True)
        assert ours.stride() == eager.stride()
