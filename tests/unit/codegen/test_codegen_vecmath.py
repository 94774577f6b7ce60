"""Vector math against float64, over the whole range of float32."""

from __future__ import annotations

import math

import numpy as np
import pytest
from codegen_support import const, dense, load, map_op, pointwise, run_kernel, var

from lampwork.loops.ir.nodes import Op

SPECIALS = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    2.0,
    -2.0,
    0.5,
    -0.5,
    1e-45,
    -1e-45,
    1.1754944e-38,
]
SPECIALS += [
    3.4028235e38,
    -3.4028235e38,
    88.72283,
    88.72284,
    -87.33655,
    -103.97208,
    -103.98,
    0.85,
    0.92,
    128.0,
    -126.0,
]
SPECIALS += [
    -149.0,
    -150.0,
    89.4,
    2.0**-12,
    2.0**-28,
    2.0**40,
    2.0**41,
    1e10,
    1e30,
    math.pi / 2,
    math.pi,
    11.0,
    -11.0,
]


def floats() -> np.ndarray:
    """A sample of all bit patterns, another of the usual range, and the special cases."""
    every = np.arange(0, 2**32, 16411, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = np.linspace(-20, 20, 100_003, dtype=np.float32)
    near = np.linspace(-1.5, 1.5, 100_003, dtype=np.float32)
    return np.concatenate([every, usual, near, np.array(SPECIALS, np.float32)])


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| in units in the last place of float32; infinite where one is special and the other is not it."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(rounded), np.float32(2.0**-126))).astype(np.float64)
        error = np.abs(got.astype(np.float64) - want) / unit
        special = ~np.isfinite(rounded) | ~np.isfinite(got)
        same = (np.isnan(rounded) & np.isnan(got)) | (rounded == got)
        # One unit beyond the largest float is infinity.
        edge = np.isinf(rounded) != np.isinf(got)
        near = edge & (np.abs(np.where(np.isinf(got), want, got.astype(np.float64))) > 3.40282e38)
    return np.where(special, np.where(same | near, 0.0, np.inf), error)


def _sigmoid(x):
    with np.errstate(all="ignore"):
        return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


REFERENCE = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "sigmoid": _sigmoid, "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]), "softplus": lambda x: np.logaddexp(x, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_float32_functions_are_within_two_ulp(name: str, isa: str) -> None:
    x = floats()
    got = map_op(name, isa, x, dtypes=["f32"], result="f32")
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64))
    error = ulps(got, want)
    worst = int(np.argmax(error))
    print(f"{name} {isa}: {error[worst]:.2f} ulp at {x[worst]!r}")
    assert error[worst] <= 2.0, f"{name}({x[worst]!r}) = {got[worst]!r}, not {want[worst]!r}"


def test_the_normal_distribution_is_exact_to_its_promise(isa: str) -> None:
    x = floats()
    got = map_op("ndtr", isa, x, dtypes=["f32"], result="f32").astype(np.float64)
    want = np.vectorize(math.erfc, otypes=[float])(-x.astype(np.float64) * math.sqrt(0.5)) / 2
    assert np.array_equal(np.isnan(got), np.isnan(want))
    error = np.nan_to_num(np.abs(got - want))
    print(f"ndtr {isa}: 2^{np.log2(error.max()):.1f}")
    assert error.max() <= 2.0**-22
    tail = (x < -1) & (x > -5.7)
    assert (error[tail] / want[tail]).max() <= 2.0**-9


@pytest.mark.parametrize(
    "name", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "expm1", "log1p"]
)
def test_the_sign_of_zero_stays(name: str, isa: str) -> None:
    got = map_op(name, isa, np.array([0.0, -0.0] * 9, np.float32), dtypes=["f32"], result="f32")
    assert list(np.signbit(got)) == [False, True] * 9


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "sigmoid", "sin", "tanh", "erf"])
def test_float64_functions_are_within_two_ulp(name: str, isa: str) -> None:
    x = np.concatenate(
        [
            np.linspace(-750, 750, 40_001),
            np.linspace(-7, 7, 40_001),
            np.linspace(-2, 2, 20_001),
            np.exp(np.linspace(-700, 700, 20_001)),
        ]
    )
    x = np.concatenate([x, np.array(SPECIALS), [5e-324, 2.0**-1022, 1.7976931348623157e308, 709.79, -745.2]])
    got = map_op(name, isa, x, dtypes=["f64"], result="f64")
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x)
        error = np.abs(got - want) / np.spacing(np.maximum(np.abs(want), 2.0**-1022))
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    error = np.where(same, 0.0, np.where(np.isfinite(error), error, np.inf))
    # numpy itself is off by up to one.
    assert error.max() <= 3.0, (
        f"{name}({x[error.argmax()]!r}) = {got[error.argmax()]!r}, not {want[error.argmax()]!r}"
    )


def _pairs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, (2, 60_000), dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = rng.uniform(-8, 8, (2, 60_000)).astype(np.float32)
    usual[0, ::3] = np.abs(usual[0, ::3])
    usual[1, ::2] = np.round(usual[1, ::2])
    near_one = np.stack([rng.uniform(0.5, 2, 60_000), rng.uniform(-120, 120, 60_000)]).astype(np.float32)
    values = np.array([*SPECIALS, 3.0, -3.0, 2.0**24 + 2, 2.0**25], np.float32)
    grid = np.stack(np.meshgrid(values, values)).reshape(2, -1)
    return tuple(np.ascontiguousarray(np.concatenate([bits, usual, near_one, grid], axis=1)))


@pytest.mark.parametrize(
    ("name", "reference"), [("pow", np.power), ("atan2", np.arctan2), ("hypot", np.hypot)]
)
def test_float32_functions_of_two_arguments_are_within_two_ulp(name: str, reference, isa: str) -> None:
    x, y = _pairs()
    got = map_op(name, isa, x, y, dtypes=["f32", "f32"], result="f32")
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64), y.astype(np.float64))
    error = ulps(got, want)
    worst = int(np.argmax(error))
    print(f"{name} {isa}: {error[worst]:.2f} ulp at {x[worst]!r}, {y[worst]!r}")
    assert error[worst] <= 2.0, f"{name}({x[worst]!r}, {y[worst]!r}) = {got[worst]!r}, not {want[worst]!r}"


@pytest.mark.parametrize("exponent", [0.5, -0.5, -1.0, -2.0, 1.5, 2.5, 4.0, 5.0, 7.0, 16.0, -3.0, 2.7, 17.0])
def test_powers_with_a_known_exponent_are_within_two_ulp(exponent: float, isa: str) -> None:
    x = floats()
    buffer, out = dense("x", "f32", x.size), dense("y", "f32", x.size)
    power = Op("pow", (load(buffer, var("i")), const(exponent)), "f32")
    got = np.zeros_like(x)
    assert run_kernel(pointwise(power, out, [buffer, out], x.size), isa, [x, got], end=x.size) == 0
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), np.float64(np.float32(exponent)))
    if exponent == 0.5:
        want = np.where(x == -np.inf, np.inf, want + 0.0)  # as C's pow; numpy takes the root
    error = ulps(got, want)
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, f"{x[worst]!r} ** {exponent} = {got[worst]!r}, not {want[worst]!r}"
    zeros = (got == 0) & (want == 0)
    assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_remainders_are_exact(dtype: str, isa: str) -> None:
    with np.errstate(all="ignore"):
        x, y = (side.astype(np.float64 if dtype == "f64" else np.float32) for side in _pairs())
    near = np.random.default_rng(6).integers(-900, 900, (2, 30_000)).astype(x.dtype) / 8
    many = np.stack([near[0] * 2.0**20, near[1]])
    x, y = (
        np.concatenate([side, *more]) for side, more in zip((x, y), zip(near, many, strict=True), strict=True)
    )
    with np.errstate(all="ignore"):
        want = np.fmod(x, y)
    got = map_op("fmod", isa, x, y, dtypes=[dtype, dtype], result=dtype)
    assert np.array_equal(got, want, equal_nan=True)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))
