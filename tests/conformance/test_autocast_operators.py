"""Autocast comes to operators that others are made of: compiled results have eager's dtype and its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lampwork

A, B, V, T = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4), torch.randn(2, 4, 4)
LSTM, GRU, ATTENTION = nn.LSTM(4, 4), nn.GRU(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)

OPERATORS: dict[str, Callable[..., Any]] = {
    "einsum of matrices": lambda a, t: torch.einsum("ij,jk->ik", a, B),
    "einsum with a vector": lambda a, t: torch.einsum("ij,j->i", a, V),
    "tensordot": lambda a, t: torch.tensordot(a, B, 1),
    "inner": lambda a, t: torch.inner(a, B),
    "kron": lambda a, t: torch.kron(a, B),
    "bilinear": lambda a, t: F.bilinear(a, B, t.repeat(2, 1, 1)),
    "chain_matmul": lambda a, t: torch.linalg.multi_dot([a, B, a]),
    "multi_dot": lambda a, t: torch.linalg.multi_dot([a, B, V]),
    "matrix_power": lambda a, t: torch.linalg.matrix_power(a, 3),
    "pinv": lambda a, t: torch.linalg.pinv(a),
    "cov": lambda a, t: torch.cov(a),
    "corrcoef": lambda a, t: torch.corrcoef(a),
    "cdist": lambda a, t: torch.cdist(a, B),
    "cosine_similarity": lambda a, t: F.cosine_similarity(a, B),
    "cosine_embedding_loss": lambda a, t: F.cosine_embedding_loss(a, B, torch.ones(4)),
    "triplet_margin_loss": lambda a, t: F.triplet_margin_loss(a, B, a + B),
    "outer": lambda a, t: torch.outer(V, a[0]),
    "vecdot": lambda a, t: torch.linalg.vecdot(a, B),
    "addmm": lambda a, t: torch.addmm(a, a, B),
    "instance_norm": lambda a, t: F.instance_norm(t),
    "layer_norm": lambda a, t: F.layer_norm(t, (4,)),
    "conv1d": lambda a, t: F.conv1d(t, T),
    "attention": lambda a, t: F.scaled_dot_product_attention(t, t, t),
    "multi-head attention": lambda a, t: ATTENTION(t, t, t)[0],
    "lstm": lambda a, t: LSTM(t)[0],
    "gru": lambda a, t: GRU(t)[0],
    "cross_entropy": lambda a, t: F.cross_entropy(a, torch.arange(4)),
    "mse_loss": lambda a, t: F.mse_loss(a, B),
    "inside a region": lambda a, t: _inside(a),
    "off inside a region": lambda a, t: _off_inside(a),
}


def _inside(a: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return torch.einsum("ij,jk->ik", a, B)


def _off_inside(a: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.einsum("ij,jk->ik", a, B)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_autocast_comes_to_what_an_operator_is_made_of(name: str, gradients: bool) -> None:
    function = OPERATORS[name]
    given = [A.clone().requires_grad_(gradients), T.clone().requires_grad_(gradients)]
    compiled = lampwork.compile(function)
    for enabled in (True, False):
        with torch.autocast("cpu", enabled=enabled):
            expected, got = function(*given), compiled(*given)
        assert got.dtype is expected.dtype
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2, equal_nan=True)
