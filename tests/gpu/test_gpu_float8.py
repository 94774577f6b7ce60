"""float8 on the card: conversions bit for bit against eager's, moves, and what eager refuses there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import float8_programs as programs
import pytest
import torch
from torch import Tensor

import gpu
import lampwork
from lampwork.api import function_of
from lampwork.inspect.explain import explanation_of

gpu.require()

NAMES = {dtype: str(dtype).removeprefix("torch.float8_") for dtype in programs.TYPES}


def bits(value: Any) -> list[Tensor]:
    """Tensors as bytes where they are float8; numbers otherwise."""
    values = [value] if isinstance(value, Tensor) else list(value)
    return [
        each.contiguous().view(torch.uint8) if each.dtype in programs.TYPES else each.contiguous()
        for each in values
    ]


def assert_same(got: Any, want: Any) -> None:
    for each, other in zip(bits(got), bits(want), strict=True):
        assert each.dtype == other.dtype and each.shape == other.shape
        if each.dtype == torch.uint8:
            wrong = (each != other).nonzero()
            assert not len(wrong), (len(wrong), each[each != other][:5], other[each != other][:5])
        else:
            torch.testing.assert_close(each, other, rtol=1e-6, atol=1e-5, equal_nan=True)


def calls(compiled: Callable[..., Any], what: str) -> int:
    return sum(each.counts.get(what, 0) for each in explanation_of(function_of(compiled)).regions)


def against_eager(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    given = gpu.on_device(args)
    try:
        want = fn(*given)
    except (RuntimeError, NotImplementedError) as error:
        with pytest.raises(type(error)) as got:
            lampwork.compile(fn)(*given)
        assert str(got.value).splitlines()[0] == str(error).splitlines()[0]
        return lampwork.compile(fn)
    compiled = lampwork.compile(fn)
    lampwork.reset_stats()
    for _ in range(2):
        assert_same(compiled(*given), want)
    assert lampwork.stats()["eager_calls"] == 0
    return compiled


@pytest.mark.parametrize("dtype", programs.TYPES, ids=NAMES.values())
def test_every_code_and_a_dense_sample(dtype: torch.dtype) -> None:
    """4 million float32 of all exponents, all codes, what lies between two of them, and the neighbours of that."""
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    exact = codes.float().nan_to_num(0, 0, 0).double().sort()[0]
    middles = ((exact[1:] + exact[:-1]) / 2).float()
    everywhere = torch.arange(0, 2**32, 1021).to(torch.int32).view(torch.float32)
    large = torch.linspace(0.9, 1.3, 4001) * torch.finfo(dtype).max
    near = torch.cat([exact.float(), middles, large, -large])
    up, down = (torch.nextafter(near, torch.full_like(near, end)) for end in (torch.inf, -torch.inf))
    x = torch.cat([near, up, down, everywhere, torch.tensor([torch.inf, -torch.inf, torch.nan, 1e9])])
    compiled = against_eager(lambda x: x.to(dtype), (x,))
    assert calls(compiled, "kernel calls") >= 1 and calls(compiled, "ATen calls") == 0
    compiled = against_eager(lambda x: x.float(), (codes,))
    assert calls(compiled, "kernel calls") >= 1 and calls(compiled, "ATen calls") == 0


@pytest.mark.parametrize("dtype", programs.TYPES, ids=NAMES.values())
@pytest.mark.parametrize("name", programs.generated(torch.float8_e5m2))
def test_what_is_generated(name: str, dtype: torch.dtype) -> None:
    compiled = against_eager(*programs.generated(dtype)[name])
    assert calls(compiled, "kernel calls") >= 1 and calls(compiled, "ATen calls") == 0


@pytest.mark.parametrize("dtype", programs.TYPES, ids=NAMES.values())
@pytest.mark.parametrize("table", [programs.chosen, programs.called, programs.refused])
def test_what_is_called_or_refused(table: Callable[..., Any], dtype: torch.dtype) -> None:
    """As eager has it on the card: a result, or its error. Integers made of nan are left out."""
    for name, (fn, args) in table(dtype).items():
        if not name.startswith("to "):
            against_eager(fn, args)


def test_products_of_float8_are_called() -> None:
    """`_scaled_mm`, where the card has it, of operands that kernels round."""
    if not gpu.ON_GPU or torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no products of float8")
    x, w = torch.randn(64, 128), torch.randn(96, 128)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        one = torch.ones((), device=x.device)
        left, right = (x * 2).to(torch.float8_e4m3fn), (w * 3).to(torch.float8_e4m3fn)
        return torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16).relu()

    given = gpu.on_device((x, w))
    torch.testing.assert_close(lampwork.compile(fn)(*given), fn(*given), rtol=1e-2, atol=1e-2)
