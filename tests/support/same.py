"""The accuracy rule of the tests: error against eager in float64 at most twice eager's own, plus a little."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def flatten(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in flatten(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in flatten(v)]
    return []


def widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).double()
    if isinstance(value, tuple | list):
        return type(value)(widened(v) for v in value)
    if isinstance(value, dict):
        return {k: widened(v) for k, v in value.items()}
    return value


def assert_same(fn: Any, got: Any, *args: Any, **kwargs: Any) -> None:
    """`got` is as good an answer of fn(*args, **kwargs) as eager's: structure, dtypes, shapes, strides, values."""
    eager = fn(*args, **kwargs)
    exact = widened(fn)(*widened(args), **widened(kwargs))
    assert type(got) is type(eager)
    for ours, theirs, truth in zip(flatten(got), flatten(eager), flatten(exact), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert ours.stride() == theirs.stride(), (ours.stride(), theirs.stride())
        if not ours.is_floating_point():
            assert torch.equal(ours, theirs)
            continue
        error = float((ours.double() - truth).square().mean().sqrt()) if ours.numel() else 0.0
        eager_error = float((theirs.double() - truth).square().mean().sqrt()) if ours.numel() else 0.0
        scale = float(truth.square().mean().sqrt()) if ours.numel() else 0.0
        assert error <= 2 * eager_error + 1e-6 * max(scale, 1e-3), (error, eager_error, scale)
