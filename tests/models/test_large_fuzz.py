"""Reductions, copies and scans of tensors so large that they are cut in stages, chunks and blocks.

A failure prints the call. `LAMPWORK_FUZZ=n` tries n calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lampwork

_COUNT = int(os.environ.get("LAMPWORK_FUZZ", "100"))
_FIRST = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))
_PART = 20  # calls of one test

_SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 55, 64, 100, 127, 128, 169, 256)
_DTYPES = (*[torch.float32] * 5, torch.float64, torch.bfloat16, torch.int64, torch.int32)
_EPSILON = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 8e-3}

Op = Callable[..., Any]  # (tensor, several dimensions, one dimension)

_BEFORE: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x * 2 + 1,
    lambda x: x.abs(),
    lambda x: x.transpose(0, -1),
    lambda x: x.flip(0),
    lambda x: x.flatten(),
    lambda x: x[..., ::2],
    lambda x: torch.where(x > 0, x, -x),
)
_OPS: dict[str, Op] = {
    "sum": lambda x, dims, dim: x.sum(dims),
    "sum of all": lambda x, dims, dim: x.sum(),
    "sums": lambda x, dims, dim: (x.sum(dims, keepdim=True), x.amax(dims)),
    "amin": lambda x, dims, dim: x.amin(dims, keepdim=True),
    "max": lambda x, dims, dim: x.max(dim),
    "argmax": lambda x, dims, dim: x.argmax(dim),
    "any": lambda x, dims, dim: (x > 2).any(dim),
    "count": lambda x, dims, dim: (x > 0).sum(dims),
    "cumsum": lambda x, dims, dim: x.cumsum(dim),
    "cummax": lambda x, dims, dim: x.cummax(dim)[0],
    "sort": lambda x, dims, dim: x.sort(dim=dim, stable=True),
    "topk": lambda x, dims, dim: x.topk(min(3, x.shape[dim]), dim)[0],
    "clone": lambda x, dims, dim: x.clone(memory_format=torch.contiguous_format),
    "cat": lambda x, dims, dim: torch.cat([x, x + 1], dim),
    "stack": lambda x, dims, dim: torch.stack([x, x * 2], dim),
    "roll": lambda x, dims, dim: x.roll(1, dim),
    "pad": lambda x, dims, dim: F.pad(x, (1, 2)),
    "gather": lambda x, dims, dim: x.gather(dim, torch.zeros_like(x, dtype=torch.int64)),
    "repeat": lambda x, dims, dim: x.repeat_interleave(2, dim),
    "diff": lambda x, dims, dim: x.diff(dim=dim),
}
_FLOATING: dict[str, Op] = {
    "mean": lambda x, dims, dim: x.mean(dims, keepdim=True),
    "variance": lambda x, dims, dim: torch.var_mean(x, dims, correction=0),
    "norm": lambda x, dims, dim: torch.linalg.vector_norm(x, 2, dims),
    "softmax": lambda x, dims, dim: x.softmax(dim),
    "log softmax": lambda x, dims, dim: x.log_softmax(dim),
    "logsumexp": lambda x, dims, dim: x.logsumexp(dims),
    "normalize": lambda x, dims, dim: F.normalize(x, dim=dim),
    "weighted": lambda x, dims, dim: (x.softmax(dim) * x).sum(dim),
    "centred": lambda x, dims, dim: (x - x.mean(dims, keepdim=True)).square().mean(dims),
    "root": lambda x, dims, dim: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),
}


def _shape(rng: Random) -> list[int]:
    """Some 4,000 to 2 million elements in one to five dimensions."""
    left, sizes = 2 ** rng.randint(12, 21), list[int]()
    for _ in range(rng.randint(0, 4)):
        sizes.append(min(rng.choice(_SIZES), left))
        left = max(left // sizes[-1], 1)
    sizes.append(left)
    rng.shuffle(sizes)
    return sizes


def _input(rng: Random) -> Tensor:
    shape, dtype = _shape(rng), rng.choice(_DTYPES)
    x = torch.randn(shape) if dtype.is_floating_point else torch.randint(-50, 50, shape)
    how = rng.randint(0, 4)
    if how == 0:
        order = rng.sample(range(x.dim()), x.dim())
        x = x.permute(order).contiguous().permute([order.index(i) for i in range(x.dim())])
    elif how == 1:
        x = torch.cat([x, x], -1)[..., : shape[-1]]
    elif how == 2:
        x = x.narrow(rng.randrange(x.dim()), 0, 1).expand(shape)
    return x.to(dtype)


def _call(rng: Random, x: Tensor) -> tuple[str, Callable[[Tensor], Any]]:
    before = rng.sample(_BEFORE, rng.randint(0, 2))
    ops = _OPS | _FLOATING if x.is_floating_point() else _OPS
    name = rng.choice(sorted(ops))
    for step in before:
        x = step(x)
    dims = tuple(sorted(rng.sample(range(x.dim()), rng.randint(1, x.dim()))))
    dim = rng.randrange(x.dim())

    def call(x: Tensor) -> Any:
        for step in before:
            x = step(x)
        return ops[name](x, dims, dim)

    return f"{name} over {dims}, {dim} of {x.dtype}{list(x.shape)} {x.stride()}", call


def _check(ours: Tensor, eager: Tensor, exact: Tensor) -> None:
    assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
    assert ours.stride() == eager.stride() or ours.numel() < 2
    if not ours.is_floating_point():
        assert torch.equal(ours, eager)
    elif ours.numel():
        error, allowed = ((each.double() - exact).abs().max() for each in (ours, eager))
        # Of equal numbers, whose variance is 0, the mean is rounded.
        assert error <= 4 * allowed + 10 * _EPSILON[ours.dtype] * exact.abs().max().clamp(min=1)


@pytest.mark.parametrize("first", range(_FIRST, _FIRST + _COUNT, _PART))
def test_large_tensors(first: int) -> None:
    for seed in range(first, min(first + _PART, _FIRST + _COUNT)):
        rng = Random(seed)
        torch.manual_seed(seed)
        x = _input(rng)
        said, call = _call(rng, x)
        eager = call(x)
        exact = call(x.double()) if x.is_floating_point() else eager
        ours = lampwork.compile(call)(x)
        leaves = torch.utils._pytree.tree_leaves
        try:
            for each in zip(leaves(ours), leaves(eager), leaves(exact), strict=True):
                _check(*each)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {said}") from error
