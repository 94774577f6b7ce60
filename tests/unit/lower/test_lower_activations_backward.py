"""Gradients of activations and dropout against eager and float64, by the reference and by generated code."""

from __future__ import annotations

import math

import pytest
import torch
from lower_harness import check
from test_lower_generated import check_table

import lampwork

aten = torch.ops.aten
EDGES = [0.0, -0.0, 1, -1, 3, -3, 0.5, -0.5, 20, -20, 88, -88, 2, 1e-30, 6, 1e20, -1e4, math.nan]
torch.manual_seed(5)
# A whole number of vectors: for what is left of them eager has other comparisons with NaN.
X = torch.cat([torch.tensor(EDGES), torch.randn(1006) * 3])
G = torch.randn(1024)

GRADIENTS = {
    "gelu": lambda g, x: aten.gelu_backward(g, x),
    "gelu tanh": lambda g, x: aten.gelu_backward(g, x.clamp(-50, 50), approximate="tanh"),
    "silu": lambda g, x: aten.silu_backward(g, x),
    "mish": lambda g, x: aten.mish_backward(g, x),
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0.5),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1, 1),
    "relu6": lambda g, x: aten.hardtanh_backward(g, x, 0.0, 6.0),
    "hardswish": lambda g, x: aten.hardswish_backward(g, x),
    "hardsigmoid": lambda g, x: aten.hardsigmoid_backward(g, x),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 1, 20),
    "softplus steep": lambda g, x: aten.softplus_backward(g, x, 2.0, 5.0),
    "elu": lambda g, x: aten.elu_backward(g, 1.5, 1.25, 1, False, x),
    "celu": lambda g, x: aten.elu_backward(g, 1.5, 1, 1 / 1.5, False, x),
    "elu by result": lambda g, x: aten.elu_backward(g, 1.5, 1.25, 1, True, x.clamp(-1.5, 50)),
    "log_sigmoid": lambda g, x: aten.log_sigmoid_backward(g, x, x.abs().neg().exp()),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "sigmoid": lambda g, x: aten.sigmoid_backward(g, x.sigmoid()),
    "tanh": lambda g, x: aten.tanh_backward(g, x.tanh()),
    "logit": lambda g, x: aten.logit_backward(g, x.sigmoid()),
    "logit outside": lambda g, x: aten.logit_backward(g, x),
    "logit bounded": lambda g, x: aten.logit_backward(g, x, 0.125),
    "glu": lambda g, x: aten.glu_backward(g.view(16, 64)[:, :32], x.view(16, 64).clamp(-3, 3), 1),
    "glu of rows": lambda g, x: aten.glu_backward(g.view(16, 64)[:8], x.view(16, 64).clamp(-3, 3), 0),
    "prelu": lambda g, x: aten._prelu_kernel_backward(
        g.view(16, 64), x.view(16, 64), g.view(16, 64)[:1].clone()
    ),
    "dropout": lambda g, x: aten.native_dropout_backward(g, x > 0, 1 / 0.7),
    "transposed": lambda g, x: aten.threshold_backward(g.view(16, 64).t(), x.view(64, 16), 0),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name):
    check(GRADIENTS[name], G, X, scale=8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradients_generated(dtype):
    x = X.clamp(-6e4, 6e4) if dtype is torch.float16 else X
    check_table(GRADIENTS, list(GRADIENTS), [G.to(dtype), x.to(dtype)], 8)


@pytest.mark.parametrize("name", ["gelu", "gelu tanh", "silu", "mish", "tanh of results", "elu", "softplus"])
def test_errors_are_at_most_those_of_eager(name):
    torch.manual_seed(1)
    x, g = torch.randn(1 << 14) * 3, torch.randn(1 << 14)
    function = GRADIENTS.get(name, aten.tanh_backward)
    if name not in GRADIENTS:
        x = x.tanh()
    exact = function(g.double(), x.double())
    with torch.no_grad():
        found = lampwork.compile(function, options={"strict": True})(g, x)
    size = exact.abs().clamp_min(1e-2)
    ours, eager = (((y.double() - exact).abs() / size).max() for y in (found, function(g, x)))
    assert ours <= 1.5 * eager + 1e-6


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 1, 7)])
def test_small_and_strided(shape):
    g, x = torch.randn(*shape, 2)[..., 0], torch.randn(*shape, 3)[..., 1]
    for name in ("gelu", "threshold", "silu", "hardswish"):
        check(GRADIENTS[name], g, x, scale=8)
