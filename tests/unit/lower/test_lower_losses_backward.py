"""Gradients of losses, softmax and views against eager and float64, by the reference and by generated code."""

from __future__ import annotations

import itertools

import pytest
import torch
from lower_harness import check
from test_lower_generated import check_table

import lampwork

aten = torch.ops.aten
torch.manual_seed(11)
X, T, G = torch.randn(6, 5) * 3, torch.randn(6, 5), torch.randn(6, 5)
ROWS, WEIGHTS = torch.randn(6), torch.tensor([0.5, 1.0, 2.0, 0.0, 1.5])
CLASSES = torch.tensor([0, 4, 2, 2, 3, 1])
MAPS, LABELS = torch.randn(2, 5, 3, 7), torch.randint(0, 5, (2, 3, 7))


def nll(g, x, classes, w, reduction, ignored=-100):
    total = g.new_tensor(3.5)
    given = g if reduction == 0 else g[0]
    return aten.nll_loss_backward(given, x, classes, w, reduction, ignored, total)


TABLE = {}
for _r in (0, 1, 2):
    TABLE[f"nll {_r}"] = lambda x, t, g, rows, w, r=_r: nll(rows, x, CLASSES, None, r)
    TABLE[f"nll weighted {_r}"] = lambda x, t, g, rows, w, r=_r: nll(rows, x, CLASSES, w, r)
    TABLE[f"nll ignored {_r}"] = lambda x, t, g, rows, w, r=_r: nll(rows, x, CLASSES, w, r, 2)
    TABLE[f"nll ignored without weight {_r}"] = lambda x, t, g, rows, w, r=_r: nll(
        rows, x, CLASSES, None, r, 2
    )
    TABLE[f"cross entropy {_r}"] = lambda x, t, g, rows, w, r=_r: aten._log_softmax_backward_data(
        nll(rows, x, CLASSES, w, r), x.log_softmax(1), 1, x.dtype
    )
    for _name, _args in {"mse": (), "smooth_l1": (1.5,), "huber": (0.75,)}.items():
        TABLE[f"{_name} {_r}"] = lambda x, t, g, rows, w, r=_r, n=_name, a=_args: getattr(
            aten, f"{n}_loss_backward"
        )(g if r == 0 else g[0, 0], x, t, r, *a)
    TABLE[f"bce {_r}"] = lambda x, t, g, rows, w, r=_r: aten.binary_cross_entropy_backward(
        g if r == 0 else g[0, 0], x.sigmoid(), t.sigmoid(), None, r
    )
    TABLE[f"bce weighted {_r}"] = lambda x, t, g, rows, w, r=_r: aten.binary_cross_entropy_backward(
        g, x.sigmoid(), t.sigmoid(), t, r
    )
for _dim in (0, 1):
    TABLE[f"softmax {_dim}"] = lambda x, t, g, rows, w, d=_dim: aten._softmax_backward_data(
        g, x.softmax(d), d, x.dtype
    )
    TABLE[f"log_softmax {_dim}"] = lambda x, t, g, rows, w, d=_dim: aten._log_softmax_backward_data(
        g, x.log_softmax(d), d, x.dtype
    )
TABLE |= {
    "transposed softmax": lambda x, t, g, rows, w: aten._softmax_backward_data(
        g.t().contiguous().t(), x.softmax(1), -1, x.dtype
    ),
    "slice": lambda x, t, g, rows, w: aten.slice_backward(g, [6, 12], 1, 2, 7, 1),
    "slice by steps": lambda x, t, g, rows, w: aten.slice_backward(g, [6, 17], 1, 3, 2**63 - 1, 3),
    "slice of all": lambda x, t, g, rows, w: aten.slice_backward(g, [6, 5], 1, 0, 5, 1),
    "slice from the end": lambda x, t, g, rows, w: aten.slice_backward(g, [9, 5], 0, -6, 9, 1),
    "empty slice": lambda x, t, g, rows, w: aten.slice_backward(g[:0], [9, 5], 0, 3, 3, 1),
    "select": lambda x, t, g, rows, w: aten.select_backward(g, [6, 3, 5], 1, 2),
    "select from the end": lambda x, t, g, rows, w: aten.select_backward(g, [6, 5, 4], -1, -2),
    "diagonal": lambda x, t, g, rows, w: aten.diagonal_backward(g, [6, 8, 5], 0, 1, 2),
    "diagonal above": lambda x, t, g, rows, w: aten.diagonal_backward(g, [5, 6, 9], 2, 0, 2),
    "halves": lambda x, t, g, rows, w: (
        aten.slice_backward(g, [6, 10], 1, 5, 10, 1) + aten.slice_backward(x, [6, 10], 1, 0, 5, 1)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_gradient(name):
    check(TABLE[name], X, T, G, ROWS, WEIGHTS, scale=8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients_generated(dtype):
    # Of half types eager rounds the product of a loss's gradient before it is scaled.
    check_table(TABLE, list(TABLE), [t.to(dtype) for t in (X, T, G, ROWS, WEIGHTS)], 12)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_maps_of_classes(reduction):
    def model(g, x, w):
        given = g if reduction == 0 else g[0, 0, 0]
        return aten.nll_loss2d_backward(given, x, LABELS, w, reduction, 2, g.new_tensor(3.5))

    check(model, torch.randn(2, 3, 7), MAPS, WEIGHTS, scale=8)


@pytest.mark.parametrize("wrong", [-1, 5, 1 << 40])
def test_classes_that_are_none_are_refused(wrong):
    one = torch.ones(())

    def model(x, classes):
        return aten.nll_loss_backward(one, x, classes, None, 1, -100, one)

    compiled = lampwork.compile(model, options={"strict": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(X, CLASSES), model(X, CLASSES))
        bad = torch.where(CLASSES == 4, wrong, CLASSES)
        for function in (model, compiled):
            with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
                function(X, bad)


def test_the_gradient_of_a_cross_entropy_is_one_kernel():
    def model(g, logs, classes, total):
        grad = aten.nll_loss_backward(g, logs, classes, None, 1, -100, total)
        return aten._log_softmax_backward_data(grad, logs, 1, torch.float32)

    logs, classes = torch.randn(64, 500).log_softmax(1), torch.randint(0, 500, (64,))
    g, total = torch.randn(()), torch.tensor(64.0)
    compiled = lampwork.compile(model, options={"strict": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(g, logs, classes, total), model(g, logs, classes, total))
    large = [kernel for kernel in str(compiled.stages.kernels).split("kernel ") if "f32[32000]" in kernel]
    assert len(large) == 1
    assert "nll_loss_backward: f32[32000]" not in large[0]


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 9), (2, 130)])
def test_softmax_of_rows_of_all_lengths(shape):
    x, g = torch.randn(shape), torch.randn(shape)
    for dim, function in itertools.product(
        (0, 1), (aten._softmax_backward_data, aten._log_softmax_backward_data)
    ):
        check(lambda g, y, f=function, d=dim: f(g, y, d, torch.float32), g, x, scale=16)
