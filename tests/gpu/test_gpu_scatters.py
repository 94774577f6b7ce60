"""What is put or added at places from data, by kernels whose threads update memory in any order: against eager, and
against double precision where sums round."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gpu
import lampwork
from lampwork.api import function_of
from lampwork.inspect.explain import explanation_of
from lampwork.testing.compare import difference

gpu.require()

on_gpu = pytest.mark.skipif(not gpu.ON_GPU, reason="no CUDA device")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32]


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(shape, device=gpu.DEVICE)
    return (x if dtype.is_floating_point else x * 9).to(dtype)


def places(below: int, *shape: int) -> Tensor:
    return torch.randint(0, below, shape, device=gpu.DEVICE)


def aten_calls(compiled: Callable[..., Any]) -> int:
    regions = explanation_of(function_of(compiled)).regions
    return sum(region.counts.get("ATen calls", 0) for region in regions)


def check(fn: Callable[..., Any], *args: Tensor, calls: int = 0) -> None:
    """As near to double precision as eager; integers exactly. `calls`: of ATen, no more."""
    compiled = lampwork.compile(fn)
    lampwork.reset_stats()
    exact = fn(*[each.double() if each.is_floating_point() else each.clone() for each in args])
    for _ in range(2):
        got, want = compiled(*gpu.cloned(args)), fn(*gpu.cloned(args))
        text = difference(got, want, exact)
        assert not text, text
    gpu.assert_compiled(compiled, 2, kernels=int(gpu.ON_GPU and not calls))
    if gpu.ON_GPU:
        assert aten_calls(compiled) <= calls, compiled.entries


ROWS = {
    "few with many": (7, 3000, 33),
    "many with few": (5000, 300, 64),
    "numbers in rows": (40, 1000, 1),
    "long rows": (5, 50, 5000),
    "empty": (7, 0, 5),
}


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_index_add(name: str, dtype: torch.dtype) -> None:
    rows, count, width = ROWS[name]
    x, s = numbers(rows, width, dtype=dtype), numbers(count, width, dtype=dtype)
    calls = int(count == 0)
    check(lambda x, i, s: x.index_add(0, i, s), x, places(rows, count), s, calls=calls)
    check(lambda x, i, s: (x * 2).index_add(0, i, s * 3) + 1, x, places(rows, count), s, calls=calls)
    check(lambda x, i, s: x.t().index_add(1, i, s.t()), x, places(rows, count), s, calls=calls)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_add(dim: int, dtype: torch.dtype) -> None:
    x, s = numbers(60, 47, dtype=dtype), numbers(60, 47, dtype=dtype)
    i = places(47, 60, 47)
    check(lambda x, i, s: x.scatter_add(dim, i, s), x, i, s)
    check(lambda x, i, s: torch.zeros_like(x).scatter_add_(dim, i[:40, :30], s.abs()), x, i, s)
    check(lambda x, i, s: x.scatter_add(dim, i * 0, s) * 2, x, i, s)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("reduce", ["sum", "amax", "amin", "prod"])
@pytest.mark.parametrize("alone", [False, True])
def test_scatter_reduce(reduce: str, dtype: torch.dtype, alone: bool) -> None:
    x, s, i = numbers(40, 30, dtype=dtype), numbers(50, 30, dtype=dtype), places(40, 50, 30)
    check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce, include_self=not alone), x, i, s)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_extrema_of_numbers_that_are_none(reduce: str, dtype: torch.dtype) -> None:
    x, s, i = numbers(9, dtype=dtype), numbers(400, dtype=dtype), places(9, 400)
    x[1], x[2], s[i == 3], s[torch.nonzero(i == 4)[0]] = float("nan"), -float("nan"), -0.0, float("nan")
    s[i == 5], s[i == 6] = float("inf"), -float("inf")
    check(lambda x, i, s: x.scatter_reduce(0, i, s, reduce), x, i, s)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.uint8, torch.bool], ids=str)
def test_what_is_put(dtype: torch.dtype) -> None:
    x, s = numbers(50, 20, dtype=dtype), numbers(30, 20, dtype=dtype)
    rows = torch.randperm(50, device=gpu.DEVICE)[:30]
    check(lambda x, i, s: x.index_copy(0, i, s), x, rows, s)
    check(lambda x, i, s: x.scatter(0, i[:, None].expand_as(s), s), x, rows, s)
    check(lambda x, i: x.scatter(0, i, 1), x, places(50, 60, 20))
    check(lambda x, i, s: assigned(x, i, s), x, rows - 50, s)
    check(lambda x, i, s: assigned(x, (slice(None), i), s[0, 0]), x, places(20, 7), s)


def assigned(x: Tensor, i: Any, s: Tensor) -> Tensor:
    x = x.clone()
    x[i] = s
    return x


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inputs_that_are_written(dtype: torch.dtype) -> None:
    def fn(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        x.index_add_(0, i, s)
        return x * 2

    x, i, s = numbers(30, 20, dtype=dtype), places(30, 100), numbers(100, 20, dtype=dtype)
    compiled = lampwork.compile(fn)
    for _ in range(2):
        ours, theirs, exact = x.clone(), x.clone(), x.double()
        pair = (compiled(ours, i, s), ours), (fn(theirs, i, s), theirs), (fn(exact, i, s.double()), exact)
        text = difference(*pair)
        assert not text, text


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_of_gathers(dtype: torch.dtype) -> None:
    def fn(x: Tensor, i: Tensor, r: Tensor) -> Tensor:
        return (x.gather(0, i) * x.index_select(0, r)).square().mean()

    x, i, r = numbers(20, 30, dtype=dtype).requires_grad_(), places(20, 90, 30), places(20, 90)
    compiled = lampwork.compile(fn)
    lampwork.reset_stats()
    for _ in range(3):
        (got,) = torch.autograd.grad(compiled(x, i, r), x)
    assert lampwork.stats()["compiled_backwards"] > 0
    (want,) = torch.autograd.grad(fn(x, i, r), x)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(fn(wide, i, r), wide)
    text = difference(got, want, exact)
    assert not text, text


def test_sums_that_eager_sorts_are_eagers() -> None:
    """Bit for bit, call after call."""
    x, i, s = numbers(9, dtype=torch.float32), places(9, 5000), numbers(5000, dtype=torch.float32)
    compiled = lampwork.compile(lambda x, i, s: (x * 2).index_put((i,), s * 3, accumulate=True))
    want = (x * 2).index_put((i,), s * 3, accumulate=True)
    for _ in range(3):
        assert torch.equal(compiled(x, i, s), want)


def test_deterministic_mode() -> None:
    """Switched on it gives eager's bits, and off again the kernels are back."""
    x, i, s = numbers(9, dtype=torch.float32), places(9, 5000), numbers(5000, dtype=torch.float32)
    compiled = lampwork.compile(lambda x, i, s: x.index_add(0, i, s * 3))
    compiled(x, i, s)
    torch.use_deterministic_algorithms(True)
    try:
        want = x.index_add(0, i, s * 3)
        for _ in range(3):
            assert torch.equal(compiled(x, i, s), want)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(compiled.entries) == 2
    torch.testing.assert_close(compiled(x, i, s), want, rtol=1e-4, atol=1e-4)
    assert len(compiled.entries) == 2


def test_deterministic_backward() -> None:
    source = numbers(9, dtype=torch.float32).requires_grad_()
    i, weights = places(9, 5000), numbers(5000, dtype=torch.float32)

    def fn(x: Tensor, i: Tensor, w: Tensor) -> Tensor:
        return (x.gather(0, i) * w).sum()

    compiled = lampwork.compile(fn)
    for _ in range(4):
        torch.autograd.grad(compiled(source, i, weights), source)
    value = compiled(source, i, weights)
    torch.use_deterministic_algorithms(True)
    try:
        (found,) = torch.autograd.grad(value, source)
        (want,) = torch.autograd.grad(fn(source, i, weights), source)
        assert torch.equal(found, want)
    finally:
        torch.use_deterministic_algorithms(False)


OUT_OF_RANGE = """
import torch, lampwork
x, s = torch.zeros(7, 5, device="cuda"), torch.ones(6, 5, device="cuda")
i = torch.tensor([0, 1, 2, {bad}, 4, 5], device="cuda")
lampwork.compile(lambda x, i, s: {program})(x, i, s)
torch.cuda.synchronize()
print("no error")
"""
PROGRAMS = {
    "index_add": "x.index_add(0, i, s)",
    "scatter_add": "x.scatter_add(0, i[:, None].expand_as(s), s)",
    "maxima": "x.scatter_reduce(0, i[:, None].expand_as(s), s, 'amax')",
    "scatter": "x.scatter(0, i[:, None].expand_as(s), 2.0)",
}


@on_gpu
@pytest.mark.parametrize("bad", [7, -1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_index_out_of_range_is_a_device_side_assert(name: str, bad: int) -> None:
    """The process it happens in cannot go on, so it is one of its own."""
    command = [sys.executable, "-c", OUT_OF_RANGE.format(program=PROGRAMS[name], bad=bad)]
    environment = {**os.environ, "LAMPWORK_STRICT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode != 0 and "no error" not in done.stdout, done.stdout
    assert "device-side assert" in done.stderr, done.stderr[-2000:]
