"""Compiled functions of float8 tensors against eager: bit for bit, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import float8_programs as programs
import pytest
import torch
from lower_harness import check
from scalar_target import native_on, target_named
from simulated import simulating_target
from torch import Tensor

import lampwork
from lampwork.api import function_of
from lampwork.codegen.gpu.nvidia import emulated
from lampwork.inspect.explain import explanation_of
from lampwork.lower import dtypes, exprs

TARGETS = {"host": None, "sse4": lambda: target_named("sse4"), "grid": emulated, "card": simulating_target}


def cases(table: Callable[[torch.dtype], dict[str, programs.Program]]) -> list[Any]:
    """The programs of a table for both types."""
    return [
        pytest.param(*program, id=f"{name} {str(dtype).removeprefix('torch.float8_')}")
        for dtype in programs.TYPES
        for name, program in table(dtype).items()
    ]


def assert_same(got: Any, want: Any) -> None:
    """The same bits, but for those of nan where they are not float8's."""
    if not isinstance(want, Tensor):
        assert len(got) == len(want)
        for each, other in zip(got, want):
            assert_same(each, other)
        return
    assert got.dtype == want.dtype and got.shape == want.shape and got.stride() == want.stride()
    if want.dtype in programs.TYPES:
        assert torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))
    else:
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-5, equal_nan=True)


def counts(compiled: Callable[..., Any], what: str) -> int:
    return sum(each.counts.get(what, 0) for each in explanation_of(function_of(compiled)).regions)


def against_eager(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    compiled = lampwork.compile(fn)
    lampwork.reset_stats()
    for _ in range(2):
        assert_same(compiled(*args), fn(*args))
    assert lampwork.stats()["eager_calls"] == 0
    return compiled


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("fn", "args"), cases(lambda dtype: programs.generated(dtype) | programs.chosen(dtype))
)
def test_what_is_generated(fn: Callable[..., Any], args: tuple[Any, ...], target: str) -> None:
    made = TARGETS[target]
    with nullcontext() if made is None else native_on(made()):
        compiled = against_eager(fn, args)
    assert counts(compiled, "kernel calls") >= 1 and counts(compiled, "ATen calls") == 0


@pytest.mark.parametrize(("fn", "args"), cases(programs.called))
def test_what_is_called(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    against_eager(fn, args)


@pytest.mark.parametrize(("fn", "args"), cases(programs.refused))
def test_what_eager_refuses(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)) as wanted:
        fn(*args)
    with pytest.raises(type(wanted.value)) as got:
        lampwork.compile(fn)(*args)
    assert str(got.value) == str(wanted.value)


@pytest.mark.parametrize(("fn", "args"), cases(programs.generated))
def test_definitions(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    check(fn, *args)


@pytest.mark.parametrize("saturates", [True, False])
def test_what_is_too_large_is_what_torch_makes_of_it(saturates: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(exprs, "saturates", lambda: saturates)
    x = torch.tensor([448.0, 464.0, 464.1, 1e9, torch.inf, -1e9, -464.0, torch.nan, 1.0] * 7)
    got = lampwork.compile(lambda x: x.to(torch.float8_e4m3fn))(x).float()
    large = 448.0 if saturates else torch.nan
    want = torch.tensor([448.0, 448.0, large, large, large, -large, -448.0, torch.nan, 1.0] * 7)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    if saturates is dtypes.saturates():
        torch.testing.assert_close(got, x.to(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("number", [0.3, -448.0, 449.0, 1e9, torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", programs.TYPES)
def test_numbers_are_taken_or_refused_as_eager_does(dtype: torch.dtype, number: float) -> None:
    def outcome(fn: Callable[..., Any]) -> Tensor | str:
        try:
            return fn(programs.codes(dtype, 4, 33))
        except RuntimeError as error:
            return str(error)

    for fn in (lambda x: torch.full_like(x, number), lambda x: x.clone().fill_(number)):
        got, want = outcome(lampwork.compile(fn)), outcome(fn)
        if isinstance(want, str):
            assert got == want
        else:
            assert_same(got, want)


@pytest.mark.parametrize("dtype", programs.TYPES)
def test_what_is_written_in_place(dtype: torch.dtype) -> None:
    def fn(cache: Tensor, x: Tensor) -> Tensor:
        cache[2] = x.to(dtype)
        cache[:, 1:3].copy_(x[1:3])
        return cache.float() * 2

    caches = [programs.codes(dtype, 6, 33) for _ in range(2)]
    x = programs.spread(33)
    assert_same(lampwork.compile(fn)(caches[0], x), fn(caches[1], x))
    assert_same(caches[0], caches[1])


@pytest.mark.parametrize("dtype", programs.TYPES)
def test_weights_of_float8(dtype: torch.dtype) -> None:
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = torch.randn(17, 64, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight.float() * 0.5).relu()

    got, want = lampwork.compile(fn)(x), fn(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    (first,), (second,) = torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x)
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_gradients_through_a_rounding() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x.to(torch.float8_e5m2).float() * x).sum()

    x = torch.randn(7, 33, requires_grad=True)
    (got,) = torch.autograd.grad(lampwork.compile(fn)(x), x)
    (want,) = torch.autograd.grad(fn(x), x)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_open_sizes() -> None:
    fn = lampwork.compile(
        lambda x: torch.cat([x.to(torch.float8_e4m3fn), x.to(torch.float8_e4m3fn)]).t().contiguous()
    )
    for n in (3, 5, 8, 13, 64):
        x = programs.spread(n, 9, seed=n)
        want = torch.cat([x.to(torch.float8_e4m3fn)] * 2).t().contiguous()
        assert_same(fn(x), want)
