"""Own shape rules of the operators of backward, against what real torch gives, absent results included."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from test_graph_shape_rules import compare, small_layouts

import lampwork
from lampwork.graph import shapes_backward, shapes_nn

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
ONE, EIGHT = [1, 1], [8, 8]


def pairs(dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(gradient, input) of shape [2, 6, 8, 8] or [1, 6, 8, 8] in all pairs of layouts."""
    given = [x.to(dtype) for x in small_layouts() if x.shape[2] == 8]
    return [(g, x) for g, x in itertools.product(given, repeat=2) if g.shape == x.shape]


ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "gelu": (),
    "silu": (),
    "mish": (),
    "threshold": (0,),
    "hardtanh": (-1, 1),
    "hardswish": (),
    "hardsigmoid": (),
    "leaky_relu": (0.1, False),
    "softplus": (1, 20),
    "logit": (),
    "hardshrink": (0.5,),
    "softshrink": (0.5,),
    "sigmoid": (),
    "tanh": (),
}


def activation_calls(dtype: torch.dtype) -> list[Any]:
    calls: list[Any] = []
    for g, x in pairs(dtype):
        for name, args in ACTIVATIONS.items():
            packet = getattr(aten, f"{name}_backward")
            op = getattr(packet, packet.overloads()[0])
            calls.append(lambda op=op, g=g, x=x, args=args: op(g, x, *args))
        weight = torch.ones(1, 6, 1, 1, dtype=dtype)
        calls += [
            lambda g=g, x=x: aten.elu_backward(g, 1, 1, 1, False, x),
            lambda g=g, x=x: aten.log_sigmoid_backward(g, x, x.clone()),
            lambda g=g, x=x: aten.glu_backward(g[:, :3], x, 1),
            lambda g=g, x=x, w=weight: aten._prelu_kernel_backward(g, x, w),
            lambda g=g, x=x: aten.native_dropout(x, 0.3, True),
            lambda g=g, x=x: aten.native_dropout_backward(g, x > 0, 2.0),
        ]
    return calls


def loss_calls(dtype: torch.dtype) -> list[Any]:
    calls: list[Any] = []
    one = torch.ones((), dtype=dtype)
    rows, labels = torch.randn(5, 6, dtype=dtype), torch.randint(0, 6, (5,))
    turned = rows.t().contiguous().t()
    for reduction in (0, 1, 2):
        loss = one if reduction else torch.ones(5, dtype=dtype)
        calls += [
            lambda r=reduction: aten.nll_loss_forward(rows, labels, None, r, -100),
            lambda r=reduction: aten.nll_loss_forward(rows[0], labels[0], None, r, -100),
            lambda r=reduction, g=loss: aten.nll_loss_backward(g, rows, labels, None, r, -100, one),
            lambda r=reduction: aten.nll_loss_backward(one, rows[0], labels[0], None, r, -100, one),
            lambda r=reduction, g=loss: aten.nll_loss_backward(g, turned, labels, None, r, -100, one),
        ]  # fmt: skip
    for g, x in pairs(dtype):
        maps = torch.randint(0, 6, (x.shape[0], 8, 8))
        calls += [
            lambda g=g, x=x: aten._softmax_backward_data(g, x, 1, x.dtype),
            lambda g=g, x=x: aten._log_softmax_backward_data(g, x, 2, x.dtype),
            lambda g=g, x=x, c=maps: aten.nll_loss2d_forward(x, c, None, 1, -100),
            lambda g=g, x=x, c=maps: aten.nll_loss2d_forward(x, c, None, 0, -100),
            lambda g=g, x=x: aten.mse_loss_backward(g, x, g, 0),
            lambda g=g, x=x: aten.mse_loss_backward(one, x, g, 1),
            lambda g=g, x=x: aten.smooth_l1_loss_backward(one, x, g, 1, 1.0),
            lambda g=g, x=x: aten.huber_loss_backward(g, x, g, 0, 1.0),
            lambda g=g, x=x: aten.binary_cross_entropy_backward(g, x.sigmoid(), g.sigmoid(), None, 0),
            lambda g=g, x=x: aten.binary_cross_entropy_backward(one, x.sigmoid(), g.sigmoid(), None, 1),
        ]
        if x.is_contiguous():
            calls.append(lambda x=x, c=maps: aten.nll_loss2d_backward(one, x, c, None, 1, -100, one))
    return calls


MASKS = [[True, True, True], [False, True, False], [True, False, True]]


def norm_calls(dtype: torch.dtype) -> list[Any]:
    calls: list[Any] = []
    kinds = {dtype, torch.float32} if dtype is torch.bfloat16 else {dtype}
    for (g, x), kind, mask in itertools.product(pairs(dtype), kinds, MASKS):
        w, n = torch.ones(6, dtype=kind), x.shape[0]
        wide, per = torch.ones(8, 8, dtype=kind), torch.ones(n, 2, dtype=kind)
        rows = torch.ones(n, 6, 1, 1, dtype=kind)
        calls += [
            lambda x=x, w=wide: aten.native_layer_norm(x, EIGHT, w, w, 1e-5),
            lambda x=x: aten.native_layer_norm(x, EIGHT, None, None, 1e-5),
            lambda g=g, x=x, w=wide, s=rows, m=mask: aten.native_layer_norm_backward(g, x, EIGHT, s, s, w, w, m),
            lambda x=x, w=w: aten.native_batch_norm(x, w, w, None, None, True, 0.1, 1e-5),
            lambda x=x, w=w: aten.native_batch_norm(x, w, w, w.clone(), w.clone(), False, 0.1, 1e-5),
            lambda x=x, w=w: aten._native_batch_norm_legit.no_stats(x, w, w, True, 0.1, 1e-5),
            lambda g=g, x=x, w=w, m=mask: aten.native_batch_norm_backward(g, x, w, None, None, w, w, True, 1e-5, m),
            lambda g=g, x=x, w=w, m=mask: aten.native_batch_norm_backward(g, x, w, w, w, w[:0], w[:0], False, 1e-5, m),
        ]  # fmt: skip
        if mask[0]:
            # Of channels-last input torch crashes without.
            calls.append(
                lambda g=g, x=x, w=w, s=per, n=n, m=mask: aten.native_group_norm_backward(
                    g, x, s, s, w, n, 6, 64, 2, m
                )
            )
        if x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last):
            calls.append(lambda x=x, w=w, n=n: aten.native_group_norm(x, w, w, n, 6, 64, 2, 1e-5))
    return calls


def pool_calls(dtype: torch.dtype) -> list[Any]:
    calls: list[Any] = []
    for g, x in pairs(dtype):
        if dtype is not torch.bfloat16 or x.is_contiguous():
            half = g[:, :, ::2, ::2].clone()
            where = torch.zeros(half.shape, dtype=torch.int64)
            kernel = [2, 2]
            calls += [
                lambda g=half, x=x, i=where, k=kernel: aten.max_pool2d_with_indices_backward(
                    g, x, k, k, [0, 0], ONE, False, i
                ),
                lambda g=half, x=x, i=where: aten.adaptive_max_pool2d_backward(g, x, i),
            ]
        calls += [
            lambda g=g, x=x: aten.avg_pool2d_backward(
                g[:, :, ::2, ::2], x, [2, 2], [2, 2], [0, 0], False, True, None
            ),
            lambda g=g, x=x: aten._adaptive_avg_pool2d_backward(g[:, :, ::2, ::2].clone(), x),
            lambda g=g: aten.upsample_nearest2d_backward(g, EIGHT, [*g.shape[:2], 4, 4]),
            lambda g=g: aten.upsample_bilinear2d_backward(g, EIGHT, [*g.shape[:2], 4, 4], False),
            lambda g=g: aten.upsample_bicubic2d_backward(g, EIGHT, [*g.shape[:2], 4, 4], False),
            lambda g=g[0]: aten.upsample_nearest1d_backward(g, [8], [*g.shape[:2], 4]),
            lambda g=g[0]: aten.upsample_linear1d_backward(g, [8], [*g.shape[:2], 4], True),
        ]
    volume = torch.randn(2, 3, 4, 4, 4, dtype=dtype)
    for x in (volume, volume.contiguous(memory_format=torch.channels_last_3d)):
        small = x[..., ::2, ::2, ::2].clone()
        calls.append(lambda g=small, x=x: aten._adaptive_avg_pool3d_backward(g, x))
        if dtype is torch.bfloat16:
            continue
        calls += [
            lambda g=small, x=x: aten.avg_pool3d_backward(g, x, [2] * 3, [2] * 3, [0] * 3, False, True, None),
            lambda g=small, x=x: aten.max_pool3d_with_indices_backward(
                g, x, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, torch.zeros(g.shape, dtype=torch.int64)
            ),
        ]
    return calls


def view_calls(dtype: torch.dtype) -> list[Any]:
    calls: list[Any] = []
    for g, _ in pairs(dtype):
        calls += [
            lambda g=g: aten.slice_backward(g, [*g.shape[:3], 17], 3, 1, 17, 2),
            lambda g=g: aten.select_backward(g, [*g.shape[:2], 5, *g.shape[2:]], 2, -1),
            lambda g=g: aten.diagonal_backward(g, [*g.shape[:3], 8, 8], 0, 3, 4),
            lambda g=g: aten.embedding_dense_backward(
                g, torch.zeros(g.shape[:3], dtype=torch.int64), 7, -1, False
            ),
        ]
    return calls


FAMILIES = {
    "activations": activation_calls,
    "losses": loss_calls,
    "norms": norm_calls,
    "pools": pool_calls,
    "views": view_calls,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_rules(family: str, dtype: torch.dtype) -> None:
    compare(FAMILIES[family](dtype))


def test_each_rule_is_compared() -> None:
    checked = set[Any]().union(*(compare(calls(torch.float32)) for calls in FAMILIES.values()))
    native = {op for op in shapes_nn.RULES if op._opname.startswith(("native_", "nll_"))}
    # Its results are those of native_batch_norm_backward.
    assert checked >= (shapes_backward.RULES.keys() | native) - {aten.batch_norm_backward.default}


def test_results_that_are_not_asked_for_are_none() -> None:
    x, g, w = torch.randn(6, 8), torch.randn(6, 8), torch.randn(8)
    _, mean, rstd = aten.native_layer_norm(x, [8], w, w, 1e-5)

    def model(g: torch.Tensor, x: torch.Tensor) -> Any:
        return aten.native_layer_norm_backward(g, x, [8], mean, rstd, w, w, [True, False, True])

    with torch.no_grad():
        found, expected = lampwork.compile(model, options={"strict": True})(g, x), model(g, x)
    assert found[1] is None
    assert expected[1] is None
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[2], expected[2])
