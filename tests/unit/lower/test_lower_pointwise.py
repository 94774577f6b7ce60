"""Pointwise rules against eager: values, promotion, special values."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from lower_harness import check, compare, externs, record, run

import lampwork
from lampwork.lower.lowering import lower_graph

INF, NAN = math.inf, math.nan
SPECIAL = torch.tensor(
    [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.7, -7.2, 30.0, -30.0, 100.0, INF, -INF, NAN, 1e-8, 2.0]
)


def floats(dtype=torch.float32):
    return SPECIAL.to(dtype)


UNARY = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "round": torch.round,
    "trunc": torch.trunc,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "atan": torch.atan,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isfinite": torch.isfinite,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "signbit": torch.signbit,
    "frac": torch.frac,
    "square": torch.square,
    "nan_to_num": torch.nan_to_num,
    "nan_to_num_given": lambda x: torch.nan_to_num(x, nan=2.0, posinf=3.0, neginf=-4.0),
    "relu": torch.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.3),
    "elu_of_nothing": lambda x: F.elu(x.relu(), float("inf")),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.7),
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, 2.0, 5.0),
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "logit": lambda x: torch.logit(x, 1e-3),
    "logical_not": torch.logical_not,
    "clamp": lambda x: torch.clamp(x, -1, 2.5),
    "clamp_nan": lambda x: torch.clamp(x, min=NAN),
    "clamp_crossed": lambda x: torch.clamp(x, 3.0, 1.0),
    "clamp_min": lambda x: x.clamp_min(0.25),
    "clamp_max": lambda x: x.clamp_max(0.25),
    "pow0": lambda x: x**0,
    "pow1": lambda x: x**1,
    "pow2": lambda x: x**2,
    "pow3": lambda x: x**3,
    "pow_half": lambda x: x**0.5,
    "pow_minus": lambda x: x**-1,
    "pow_minus2": lambda x: x**-2,
    "pow_minus_half": lambda x: x**-0.5,
    "pow2.5": lambda x: x**2.5,
    "pow_of_2": lambda x: 2**x,
    "pow_of_3": lambda x: 3.0**x,
    "add_number": lambda x: x + 1.5,
    "add_alpha": lambda x: torch.add(x, 2, alpha=3),
    "sub_number": lambda x: x - 3,
    "rsub": lambda x: 1 - x,
    "mul_number": lambda x: x * 0.1,
    "div_number": lambda x: x / 3,
    "rdiv": lambda x: 3 / x,
    "div_floor": lambda x: torch.div(x, 0.7, rounding_mode="floor"),
    "div_trunc": lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
    "floor_divide": lambda x: x // 0.7,
    "remainder": lambda x: x % 1.5,
    "remainder_negative": lambda x: x % -1.5,
    "fmod": lambda x: torch.fmod(x, 1.5),
    "eq": lambda x: x == 0.5,
    "lt": lambda x: x < 0.5,
    "ge": lambda x: x >= 0,
    "ne_int": lambda x: x != 1,
    "masked_fill": lambda x: x.masked_fill(x > 0, -INF),
    "where_number": lambda x: torch.where(x > 0, x, 0.0),
    "to_int": lambda x: x.nan_to_num(0, 9, -9).to(torch.int32),
    "to_bool": lambda x: x.to(torch.bool),
    "to_u8": lambda x: x.abs().nan_to_num(0, 9, -9).to(torch.uint8),
    "to_double": lambda x: x.double(),
    "to_half": lambda x: x.half(),
    "clone": torch.clone,
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3.5),
    "sgn": torch.sgn,
    "deg2rad": torch.deg2rad,
    "xlogy": lambda x: torch.xlogy(x, 2.0),
}

# Eager computes these in half types with roundings of its own on the way; numpy's power(x, 0.5) is a square root.
LOOSE = {
    "pow_half",
    "mish",
    "celu",
    "selu",
    "logit",
    "remainder",
    "remainder_negative",
    "tanhshrink",
    "softsign",
}


def inputs_of(name, dtype):
    # Eager's vectorised gelu of inf is NaN in some dtypes; ours is inf in all.
    return floats(dtype).nan_to_num(0, 50, -50) if name == "gelu" else floats(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    check(UNARY[name], inputs_of(name, dtype), scale=4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(UNARY.keys() - LOOSE))
def test_unary_half(name, dtype):
    check(UNARY[name], inputs_of(name, dtype))


BINARY = {
    "add": lambda a, b: a + b,
    "add_alpha": lambda a, b: torch.add(a, b, alpha=2),
    "sub": lambda a, b: a - b,
    "sub_alpha": lambda a, b: torch.sub(a, b, alpha=2),
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "max_other": lambda a, b: torch.max(a, b),
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "where": lambda a, b: torch.where(a > b, a, b),
    "clamp_tensor": lambda a, b: torch.clamp(a, min=b),
    "clamp_max_tensor": lambda a, b: torch.clamp(a, max=b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp_far": lambda a, b: torch.lerp(a, b, 0.8),
    "lerp_tensor": lambda a, b: torch.lerp(a, b, torch.sigmoid(b)),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=0.5),
    "logaddexp": torch.logaddexp,
    "heaviside": torch.heaviside,
    "xlogy": torch.xlogy,
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1.25),
    "prelu": lambda a, b: F.prelu(a, b.reshape(-1)[:1]),
}


def pairs(dtype):
    values = SPECIAL.to(dtype)
    return values.reshape(-1, 1), values.flip(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    a, b = pairs(dtype)
    if name.startswith("lerp"):  # inf - inf differs by the side that is taken
        a, b = torch.randn(4, 1, dtype=dtype), torch.randn(5, dtype=dtype)
    check(BINARY[name], a, b, scale=4)


@pytest.mark.parametrize("name", ["add", "mul", "div", "sub", "maximum", "lt", "where", "pow", "atan2"])
def test_binary_half(name):
    a, b = pairs(torch.bfloat16)
    check(BINARY[name], a, b)
    a, b = pairs(torch.float16)
    check(BINARY[name], a, b)


# --- integers and promotion -------------------------------------------------------------------------------------------

INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([0, 1, 2, 5, info.max, info.min, info.max - 1], dtype=dtype)
    check(lambda x: x + 3, x)
    check(lambda x: x * 5, x)
    check(lambda x: x * x, x)
    check(lambda x: x - 7, x)
    check(lambda x: -x, x)
    check(lambda x: x**3, x)
    check(lambda x: x**5, x)
    check(lambda x: torch.abs(x), x)
    check(lambda x: x // 3, x)
    check(lambda x: x % 3, x)
    check(lambda x: torch.fmod(x, 3), x)
    check(lambda x: torch.div(x, 3, rounding_mode="trunc"), x)
    check(lambda x: x / 2, x)
    check(lambda x: x + 0.5, x)
    check(lambda x: torch.clamp(x, 1, 5), x)
    check(lambda x: x & 3, x)
    check(lambda x: x | 3, x)
    check(lambda x: x ^ 3, x)
    check(lambda x: ~x, x)
    check(lambda x: x << 2, x)
    check(lambda x: x >> 1, x)
    check(lambda x: torch.exp(x.clamp(0, 5)), x)
    check(lambda x: x.sign(), x)
    check(lambda x: torch.ceil(x), x)
    check(lambda x: x > 1.5, x)
    check(lambda x: torch.isnan(x), x)
    check(lambda x: x.masked_fill(x > 2, 3), x)


def test_negative_integer_division():
    x = torch.tensor([-7, -6, -1, 0, 1, 6, 7])
    for divisor in (3, -3):
        check(lambda x: x // divisor, x)
        check(lambda x: x % divisor, x)
        check(lambda x: torch.fmod(x, divisor), x)
        check(lambda x: torch.div(x, divisor, rounding_mode="trunc"), x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_division_by_a_tensor(dtype: torch.dtype):
    a = torch.tensor([7, -7, 100, 0, 1, 127, -127, 6, -6, 5]).to(dtype)
    b = torch.tensor([2, 2, 3, 5, 127, -1, -1, -6, 6, 1]).to(dtype)
    check(lambda a, b: a // b, a, b)
    check(lambda a, b: a % b, a, b)
    check(lambda a, b: torch.fmod(a, b), a, b)
    check(lambda a, b: torch.div(a, b, rounding_mode="trunc"), a, b)


def test_bool_arithmetic():
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for fn in (
        lambda a, b: a + b,
        lambda a, b: a * b,
        lambda a, b: a & b,
        lambda a, b: a | b,
        lambda a, b: a ^ b,
        lambda a, b: ~a,
        lambda a, b: a == b,
        lambda a, b: torch.maximum(a, b),
        lambda a, b: torch.where(a, 1.0, 2.0),
        lambda a, b: a + 1,
        lambda a, b: a * 2.5,
        lambda a, b: a / 2,
        lambda a, b: a.float() * b,
        lambda a, b: torch.logical_and(a, b),
    ):
        check(fn, a, b)


PROMOTIONS = [
    (torch.float32, torch.float64),
    (torch.float32, torch.int64),
    (torch.int32, torch.float16),
    (torch.float16, torch.bfloat16),
    (torch.int8, torch.uint8),
    (torch.bool, torch.float32),
    (torch.bool, torch.int16),
    (torch.int32, torch.int64),
]


@pytest.mark.parametrize("first,second", PROMOTIONS)
@pytest.mark.parametrize("zero_dim", [False, True])
def test_promotion(first, second, zero_dim):
    a = torch.tensor([0, 1, 2, 3]).to(first)
    b = torch.tensor(3).to(second) if zero_dim else torch.tensor([3, 2, 1, 1]).to(second)
    for x, y in ((a, b), (b, a)):
        check(lambda x, y: x + y, x, y)
        check(lambda x, y: x * y, x, y)
        check(lambda x, y: x / y, x, y)
        check(lambda x, y: x < y, x, y)
        check(lambda x, y: torch.where(x.bool(), x, y), x, y)


def test_comparison_rounds_a_number_to_the_tensor():
    x = torch.tensor([0.1], dtype=torch.bfloat16)
    check(lambda x: x == 0.1, x)
    check(lambda x: x < 0.1, x)


def test_broadcast_keeps_layout():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(lambda x, y: x + y, x, torch.randn(3, 1, 1))
    check(lambda x: torch.relu(x.transpose(1, 2)), x)
    check(lambda x, y: x + y, torch.randn(3, 1), torch.randn(1, 4))
    check(lambda x, y: x * y, torch.randn(()), torch.randn(2, 0))


def test_clamp_promotes_and_prelu_by_channel():
    check(lambda x: torch.clamp(x, 0.5, 1.5), torch.tensor([0, 1, 2]))
    check(F.prelu, torch.randn(2, 3, 4), torch.rand(3))
    check(lambda x: F.glu(x, 1), torch.randn(2, 6, 4))


def test_complex_is_left_to_aten():
    recorded = record(lambda x: (x * 2).real + 1, [torch.randn(3, dtype=torch.complex64)])
    lowered = lower_graph(recorded.graph)
    x = recorded.inputs[0].tensor
    assert externs(lowered)
    compare(run(lowered, [x])[0], (x * 2).real + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_softshrink_has_no_negative_zeros(dtype):
    x = torch.tensor([-0.2, -0.0, 0.0, 0.2, -0.5, 0.5, -1.0, torch.nan] * 8, dtype=dtype)
    want, have = F.softshrink(x), lampwork.compile(F.softshrink)(x)
    torch.testing.assert_close(have, want, equal_nan=True)
    numbers = ~x.isnan()
    assert torch.equal(have.signbit()[numbers], want.signbit()[numbers])
