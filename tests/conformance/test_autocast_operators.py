"""Autocast comes to operators that others are made of: compiled results have eager's dtype and its values."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from opinfo_samples import database, samples
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import lampwork
from lampwork.graph.opinfo import op_info
from lampwork.graph.within import is_cast, may_be_cast_inside

A, B, V, T = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4), torch.randn(2, 4, 4)
LSTM, GRU, ATTENTION = nn.LSTM(4, 4), nn.GRU(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)
ENCODER = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()

OPERATORS: dict[str, Callable[..., Any]] = {
    "einsum of matrices": lambda a, t: torch.einsum("ij,jk->ik", a, B),
    "einsum with a vector": lambda a, t: torch.einsum("ij,j->i", a, V),
    "tensordot": lambda a, t: torch.tensordot(a, B, 1),
    "inner": lambda a, t: torch.inner(a, B),
    "kron": lambda a, t: torch.kron(a, B),
    "trilinear": lambda a, t: torch._trilinear(a, B, a, [0], [0], [0], [1]),
    "bilinear": lambda a, t: F.bilinear(a, B, t.repeat(2, 1, 1)),
    "chain_matmul": lambda a, t: torch.linalg.multi_dot([a, B, a]),
    "multi_dot": lambda a, t: torch.linalg.multi_dot([a, B, V]),
    "matrix_power": lambda a, t: torch.linalg.matrix_power(a, 3),
    "pinv": lambda a, t: torch.linalg.pinv(a),
    "cov": lambda a, t: torch.cov(a),
    "corrcoef": lambda a, t: torch.corrcoef(a),
    "cdist": lambda a, t: torch.cdist(a, B),
    "affine_grid": lambda a, t: F.affine_grid(t[:, :2, :3], [2, 1, 3, 3], align_corners=False),
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
    "encoder layer": lambda a, t: _without_gradients(ENCODER, t),
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


def _without_gradients(module: nn.Module, t: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return module(t)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_autocast_comes_to_what_an_operator_is_made_of(name: str, gradients: bool) -> None:
    function = OPERATORS[name]
    given = [A.clone().requires_grad_(gradients), T.clone().requires_grad_(gradients)]
    compiled = lampwork.compile(function)
    for enabled in (True, False):
        with torch.autocast("cpu", enabled=enabled):
            try:
                expected = function(*given)
            except RuntimeError as error:  # oneDNN has no LSTM of bfloat16 for CPUs without AVX-512
                with pytest.raises(type(error)):
                    compiled(*given)
                continue
            got = compiled(*given)
        assert got.dtype is expected.dtype
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2, equal_nan=True)


class _EachAlone(TorchDispatchMode):
    """Calls each operator once as it is and once under autocast; `differing`: those that autocast reaches within."""

    def __init__(self) -> None:
        super().__init__()
        self.differing: set[str] = set()
        self.asked: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op_info(func).kind != "pure" or func in self.asked or may_be_cast_inside(func) or is_cast(func):
            return func(*args, **kwargs)
        self.asked.add(func)
        state = torch.get_rng_state()
        result = func(*args, **kwargs)
        torch.set_rng_state(state)
        excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.AutocastCPU)
        with torch.autocast("cpu"):
            guard = torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
            with guard:
                again = func(*args, **kwargs)
        # What memory held before is no matter of autocast.
        if "empty" not in func._opname and not _alike(result, again):
            self.differing.add(func._opname)
        return result


def _alike(result: Any, again: Any) -> bool:
    pairs = list(zip(tree_leaves(result), tree_leaves(again), strict=True))
    tensors = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor)]
    return all(
        a.dtype is b.dtype and a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in tensors
        if a.layout is torch.strided
    )


def test_kernels_that_call_what_autocast_casts_are_known() -> None:
    found = _EachAlone()
    for op in database():
        for sample in samples(op, torch.float32, 2):
            # What a sample raises is of no interest here.
            with torch.no_grad(), warnings.catch_warnings(), contextlib.suppress(Exception), found:
                warnings.simplefilter("ignore")
                sample.fn(*sample.args, **sample.kwargs)
    assert len(found.asked) > 300
    assert found.differing == set()
