"""numerics="eager": the roundings of eager, where they show."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numeric_programs
import numpy as np
import pytest
import torch
from same import assert_same
from torch import Tensor
from torch.nn import functional as F

import lampwork
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.errors import OptionError

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *HALVES)


def assert_bits(fn: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Compiled, fn gives eager's bits."""
    got = lampwork.compile(fn, options={"strict": True})(*inputs)
    difference = numeric_programs.first_difference(got, fn(*inputs))
    assert difference is None, difference


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


# --- contraction ------------------------------------------------------------------------------------------------------


def test_a_product_and_a_sum_round_apart() -> None:
    assert_bits(lambda img: (img * 127.5 + 127.5).to(torch.uint8), torch.linspace(-1, 1, 256))
    a = randn(1000)
    assert_bits(lambda a, b: torch.sqrt(a * a - b * b), a, a.clone())
    assert_bits(lambda a, b: a * b - b * a, a, randn(1000, seed=1))
    assert_bits(lambda a, b: (a * b > 1 - a) & (a * b + a > 1), a, randn(1000, seed=1))


def test_a_sum_of_products_rounds_the_products() -> None:
    x = randn(64, 1)
    y = randn(64, 1, seed=1)
    assert_bits(lambda a, b: (a * b).sum(1), torch.cat([x, -x], 1), torch.cat([y, y], 1))


def test_one_operator_may_round_once() -> None:
    """As eager's vectors do: these are the bits of a fused multiply-add."""
    if not host_isa().has_fma:
        pytest.skip("eager has no fused multiply-add here either")
    x, y, z = (randn(640, seed=seed) for seed in range(3))
    for fn in (
        lambda x, y, z: torch.addcmul(x, y, z),
        lambda x, y, z: torch.addcmul(x, y, z, value=0.3),
        lambda x, y, z: torch.add(x, y, alpha=0.3),
        lambda x, y, z: torch.sub(x, y, alpha=0.3),
        lambda x, y, z: torch.rsub(x, y, alpha=0.3),
        lambda x, y, z: torch.lerp(x, y, 0.3),
        lambda x, y, z: torch.lerp(x, y, 0.7),
        lambda x, y, z: torch.lerp(x, y, z),
    ):
        assert_bits(fn, x, y, z)
    assert_bits(lambda x: x + torch.linspace(0.3, 7.7, 1001), torch.zeros(1001))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranges(dtype: torch.dtype) -> None:
    x = torch.zeros(300, dtype=dtype)
    assert_bits(lambda x: x + torch.arange(300, dtype=dtype), x)
    assert_bits(lambda x: x + torch.linspace(-1, 2.7, 300, dtype=dtype), x)


def test_fast_contracts() -> None:
    if not host_isa().has_fma:
        pytest.skip("no fused multiply-add")
    a = randn(1000)
    fn = lampwork.compile(lambda a, b: a * a - b * b, options={"numerics": "fast"})
    assert fn(a, a.clone()).count_nonzero() > 0


def test_the_option_is_an_argument_a_context_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    if not host_isa().has_fma:
        pytest.skip("no fused multiply-add")
    a = randn(1000)

    def contracts(**options: Any) -> bool:
        return bool(lampwork.compile(lambda a, b: a * a - b * b, options=options)(a, a.clone()).any())

    assert not contracts()
    with lampwork.config.using(numerics="fast"):
        assert contracts()
        assert not contracts(numerics="eager")
    monkeypatch.setenv("LAMPWORK_NUMERICS", "fast")
    assert contracts()
    assert not contracts(numerics="eager")
    with pytest.raises(OptionError, match='takes "eager" or "fast", got \'loose\''):
        lampwork.compile(torch.relu, options={"numerics": "loose"})


# --- half types -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
def test_every_operator_rounds_to_the_half_type(dtype: torch.dtype) -> None:
    x, y, z = (randn(1000, dtype=dtype, seed=seed) * 30 for seed in range(3))
    assert_bits(lambda x, y, z: (x * y + z) * x - y, x, y, z)
    assert_bits(lambda x, y, z: (x * 1e4 * 1e4) / 1e8 + (x * x * x * x), x, y, z)
    assert_bits(lambda x: x.to(dtype).float() * 3, randn(1000))
    assert_bits(lambda x: x * F.relu6(x + 3) / 6, x)
    assert_bits(lambda x: F.hardtanh(x + 3, 0, 6) / 6, x)
    assert_bits(lambda x: x.square() ** 3 + x**-2 + x**2, x / 30)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("number", [0.1, -0.3, 1 / 3, 2.7, 257.0])
def test_numbers_are_rounded_to_the_half_type_where_eager_does(dtype: torch.dtype, number: float) -> None:
    x = randn(4096, dtype=dtype) * 3
    for fn in (
        *(operator.add, operator.sub, operator.mul, operator.truediv, torch.remainder, torch.fmod),
        *(torch.floor_divide, torch.maximum, torch.where, operator.lt, torch.copysign),
    ):
        for other in (number, torch.tensor(number), torch.tensor(number, dtype=torch.float64)):
            if fn is torch.where:
                assert_bits(lambda x, o=other: torch.where(x > 0, x, o), x)
            elif fn is not torch.maximum or isinstance(other, Tensor):
                assert_bits(lambda x, fn=fn, o=other: fn(x, o), x)
                if isinstance(other, Tensor) or fn in (operator.sub, operator.truediv):
                    assert_bits(lambda x, fn=fn, o=other: fn(o, x), x)
    assert_bits(lambda x: torch.add(x, x.abs(), alpha=number), x[:4064])
    assert_bits(lambda x: F.leaky_relu(x, number), x)
    assert_bits(lambda x: F.hardshrink(x, abs(number)), x)
    assert_bits(lambda x: F.threshold(x, number, number), x)


@pytest.mark.parametrize("dtype", HALVES)
def test_integers_are_rounded_to_the_half_type(dtype: torch.dtype) -> None:
    x, i = randn(67, dtype=dtype), torch.randint(-3000, 3000, (67,))
    one = torch.tensor([2049])
    for fn in (operator.add, operator.mul, operator.truediv, torch.floor_divide, torch.remainder):
        assert_bits(fn, x, i)
        assert_bits(fn, i, x)
        assert_bits(fn, x, one)
        assert_bits(fn, one, x)


@pytest.mark.parametrize("dtype", HALVES)
def test_quotients_of_half_types_round_before_they_are_cut_off(dtype: torch.dtype) -> None:
    x, y = randn(4096, dtype=dtype) * 300, randn(4096, dtype=dtype, seed=1)
    for mode in ("floor", "trunc"):
        assert_bits(lambda x, y, mode=mode: torch.div(x, y, rounding_mode=mode), x, y)
        assert_bits(lambda x, mode=mode: torch.div(x, 0.7, rounding_mode=mode), x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_activations_made_of_arithmetic(dtype: torch.dtype) -> None:
    x, y, w = (randn(1000, dtype=dtype, seed=seed) * 3 for seed in range(3))
    for fn in (
        *(F.hardswish, F.hardsigmoid, F.relu6, torch.deg2rad, torch.square, torch.frac),
        lambda x: F.softshrink(x) + 0.0,  # eager's scalars give -0.0, and its vectors 0.0
        lambda x: F.hardtanh(x, -0.3, 0.3),
        lambda x: F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype)),
        lambda x: (x + 3).clamp(0, 6) / 6 * x,
        lambda x: x * (x + 3).clamp(0, 6) / 6,
    ):
        assert_bits(fn, x)
    for fn in (
        lambda x, y, w: torch.addcmul(x, y, w, value=0.3),
        lambda x, y, w: torch.addcdiv(x, y, w, value=0.3),
        lambda x, y, w: torch.lerp(x, y, 0.3),
        lambda x, y, w: torch.lerp(x, y, w.abs()),
    ):
        assert_bits(fn, *(t[:960] for t in (x, y, w)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_reductions_are_as_near_as_eagers(dtype: torch.dtype) -> None:
    x = randn(16, 257, dtype=dtype) * 0.05
    for fn in (
        lambda x: F.rms_norm(x, (257,), eps=torch.finfo(torch.float32).eps),
        lambda x: F.layer_norm(x, (257,), x[0], x[1]),
        *(
            lambda x: x.var(1),
            lambda x: x.norm(dim=1),
            lambda x: F.mse_loss(x, x.flip(0)),
            lambda x: (x * x).sum(1),
        ),
    ):
        assert_same(fn, lampwork.compile(fn, options={"strict": True})(x), x)
    if dtype is not torch.float64:
        # Without a number it is float32's, in which half types compute.
        default = lampwork.compile(lambda x: F.rms_norm(x, (257,)))(x)
        torch.testing.assert_close(default, F.rms_norm(x, (257,)))


# --- conversions, zeros, nan ------------------------------------------------------------------------------------------

_ODD = (
    *(
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        -2.5,
        0.49999997,
        255.0,
        256.0,
        -1.0,
        -129.0,
        65535.9,
        2.0**31,
        2.0**31 + 5,
    ),
    *(-(2.0**31) - 9, 2.0**33 + 7, 2.0**40 + 2.0**20, 2.0**62, 2.0**63, 2.0**64, 1e-40, 1e30),
    *(math.inf, -math.inf, math.nan),
)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "target", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
def test_numbers_that_do_not_fit_convert_as_in_eager(dtype: torch.dtype, target: torch.dtype) -> None:
    x = torch.tensor(_ODD * 3, dtype=torch.float64).to(dtype)
    assert_bits(lambda x: x.to(target), x)
    # There and back in one kernel: no conversion may be taken to be exact.
    assert_bits(lambda x: x.to(target) == x, x)
    assert_bits(lambda x: x.to(target).to(dtype) - 1, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_and_nan(dtype: torch.dtype) -> None:
    x = torch.tensor(_ODD * 2, dtype=torch.float64).to(dtype)
    grid = [t.contiguous() for t in torch.broadcast_tensors(x, x[:, None])]
    for fn in (torch.fmin, torch.fmax, torch.copysign, torch.heaviside):
        assert_bits(fn, *grid)
    for fn in (
        torch.maximum,
        torch.minimum,
    ):  # Of 0.0 and -0.0 eager's vectors and scalars take different ones.
        assert_bits(lambda x, y, fn=fn: fn(x, y) + 0.0, *grid)
    for fn in (torch.round, torch.floor, torch.ceil, torch.trunc, torch.sign, torch.relu, torch.signbit):
        assert_bits(fn, x)
    assert_bits(lambda x: x.clamp(0, 1), x)
    assert_bits(lambda x: torch.where(x > 0, x, x.log() * 0 + 1), x.nan_to_num(0.5, 0.5, 0.5))


def test_a_square_root_is_rounded_right() -> None:
    """Eager's (of MKL) is off by an ulp on some processors."""
    for dtype in (torch.float32, torch.float64):
        x = randn(5000, dtype=dtype).abs() * 1e5
        got = lampwork.compile(torch.sqrt)(x)
        assert torch.equal(got, torch.from_numpy(np.sqrt(x.numpy())))
    for dtype in HALVES:
        assert_bits(torch.sqrt, randn(5000, dtype=dtype).abs())
