"""Every pointwise operation, in every dtype it takes, against the numpy meaning that `loops.ops` gives it."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_support import NUMPY, const, dense, load, map_op, op, pointwise, run_kernel, var

from lampwork.codegen.llvm.emit_ops import RULES
from lampwork.loops.ir.ops import OPS
from lampwork.loops.reference.evaluate import convert, round_bf16

FLOATS = ["f64", "f32", "f16", "bf16"]
SIGNED = ["i64", "i32", "i16", "i8"]
INTEGERS = [*SIGNED, "u8"]

# Operations that are right to the last bit, by the dtypes they are tested in.
EXACT = {
    **dict.fromkeys(["neg", "abs", "sign"], [*FLOATS, *SIGNED]),
    **dict.fromkeys(["ceil", "floor", "round", "trunc"], [*FLOATS, "i32"]),
    **dict.fromkeys(["sqrt", "reciprocal", "div", "copysign"], FLOATS),
    **dict.fromkeys(["add", "mul"], [*FLOATS, *INTEGERS, "bool"]),
    **dict.fromkeys(["sub"], [*FLOATS, *INTEGERS]),
    **dict.fromkeys(["minimum", "maximum", "fmin", "fmax"], [*FLOATS, *INTEGERS, "bool"]),
    **dict.fromkeys(["isnan", "isinf", "isfinite", "signbit"], [*FLOATS, "i32", "u8"]),
    **dict.fromkeys(["eq", "ne", "lt", "le", "gt", "ge", "not"], [*FLOATS, *INTEGERS, "bool"]),
    **dict.fromkeys(["and", "or", "xor", "bitnot"], [*INTEGERS, "bool"]),
    **dict.fromkeys(["shl", "shr"], INTEGERS),
    **dict.fromkeys(["floordiv", "truncdiv", "rem", "fmod"], ["f64", "f32", *INTEGERS]),
    "pow": INTEGERS,
}
EXACT_CASES = [(name, dtype) for name, dtypes in EXACT.items() for dtype in dtypes]


def values(dtype: str, seed: int, n: int = 2003) -> np.ndarray:
    """Random values of a dtype as the evaluator holds them (bf16 as float32), special ones first."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, n).astype(np.bool_)
    if dtype in FLOATS:
        special = np.array(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 1e-7]
        )
        x = rng.normal(0, 4, n)
        x[: special.size] = rng.permutation(special)
        x[special.size : 100] = np.round(x[special.size : 100])
        return convert(x, dtype)
    info = np.iinfo({"i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8}[dtype])
    x = rng.integers(info.min, info.max, n, dtype=np.int64 if dtype != "u8" else np.int64, endpoint=True)
    x[:300] = rng.integers(max(info.min, -9), 9, 300)
    x[0], x[1] = info.min, info.max
    return x.astype(info.dtype)


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """An array as it lies in memory."""
    return (x.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else x


def loaded(x: np.ndarray, dtype: str) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else x


def reference(name: str, args: list[np.ndarray], dtype: str, result: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float32) if dtype == "f16" else a for a in args]
        return convert(np.asarray(OPS[name].reference(*wide)), result)


def test_every_operation_has_code() -> None:
    assert set(RULES) | {"cast", "philox", "require"} == set(OPS)


@pytest.mark.parametrize(("name", "dtype"), EXACT_CASES)
def test_exact_operations(name: str, dtype: str, isa: str) -> None:
    info = OPS[name]
    args = [values(dtype, seed) for seed in range(info.arity)]
    if name in ("floordiv", "truncdiv", "rem", "fmod") and dtype in INTEGERS:
        args[1] = np.where(args[1] == 0, 3, args[1]).astype(args[1].dtype)
    if name in ("shl", "shr"):
        args[1] = (args[1] % 80 - 4).astype(args[1].dtype)
    result = "bool" if info.result == "bool" else dtype
    want = reference(name, args, dtype, result)
    inputs = [stored(a, dtype) for a in args]
    got = loaded(map_op(name, isa, *inputs, dtypes=[dtype] * info.arity, result=result), result)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["floordiv", "truncdiv", "rem", "fmod"])
@pytest.mark.parametrize("limit", [2**51, 2**62])
def test_division_is_exact_where_quotients_are_nearly_whole(name: str, limit: int, isa: str) -> None:
    rng = np.random.default_rng(11)
    y = rng.integers(1, 2 ** rng.integers(1, 50, 4000), dtype=np.int64)
    x = rng.integers(1, limit // y + 1) * y + rng.integers(-1, 2, 4000)
    x, y = (side * rng.choice([-1, 1], 4000) for side in (x, y))
    x[:6] = 2**51, 2**51 - 1, -(2**51), -(2**51) - 1, 2**63 - 1, -(2**63)
    y[:6] = 1, -1, -1, 1, 2**63 - 1, 2**62
    want = reference(name, [x, y], "i64", "i64")
    np.testing.assert_array_equal(map_op(name, isa, x, y, dtypes=["i64", "i64"], result="i64"), want)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, "bool"])
def test_casts(source: str, target: str, isa: str) -> None:
    x = values(source, 7)
    if source in FLOATS and target in INTEGERS:
        with np.errstate(invalid="ignore"):
            x = convert(np.where(np.isfinite(x.astype(np.float64)), x, 0).astype(np.float64) * 9, source)
        if target == "u8":
            x = np.abs(x)
    want = convert(x.astype(np.float32) if source == "f16" and target == "bf16" else x, target)
    got = loaded(map_op("cast", isa, stored(x, source), dtypes=[source], result=target), target)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rare", [[], [1e-40], [-3e-39, 1e-45], [1.1754942e-38]])
def test_bf16_keeps_every_bit_beside_subnormal_numbers(rare: list[float], isa: str) -> None:
    x = np.random.default_rng(2).standard_normal(2000).astype(np.float32)
    x[:6] = 0.0, -0.0, np.nan, np.inf, -np.inf, 1.17549435e-38
    for number in rare:
        x[np.random.default_rng(3).integers(6, 2000, 3)] = number
    bits = map_op("cast", isa, x, dtypes=["f32"], result="bf16")
    np.testing.assert_array_equal(bits, (round_bf16(x).view(np.uint32) >> 16).astype(np.uint16))


def test_bf16_rounds_to_nearest_even_everywhere(isa: str) -> None:
    x = np.arange(0, 2**32, 65537 // 3, dtype=np.uint64).astype(np.uint32).view(np.float32)
    got = loaded(map_op("cast", isa, x, dtypes=["f32"], result="bf16"), "bf16")
    np.testing.assert_array_equal(got, round_bf16(x))


def test_f16_converts_exactly_both_ways(isa: str) -> None:
    every = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(
        map_op("cast", isa, every, dtypes=["f16"], result="f32"), every.astype(np.float32)
    )
    x = np.arange(0, 2**32, 16411, dtype=np.uint64).astype(np.uint32).view(np.float32)
    usual = np.linspace(-70000, 70000, 200_003, dtype=np.float32)
    small = np.linspace(-1e-4, 1e-4, 200_003, dtype=np.float32)
    x = np.concatenate([x, usual, small])
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(map_op("cast", isa, x, dtypes=["f32"], result="f16"), want)


def test_fma_and_where(isa: str) -> None:
    a, b, c = (values("f32", seed) for seed in (1, 2, 3))
    got = map_op("fma", isa, a, b, c, dtypes=["f32"] * 3, result="f32")
    with np.errstate(all="ignore"):
        want = a.astype(np.float64) * b + c
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=1e-5, atol=1e-5)
    mask = values("bool", 4)
    got = map_op("where", isa, mask, a, b, dtypes=["bool", "f32", "f32"], result="f32")
    np.testing.assert_array_equal(got, np.where(mask, a, b))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 2.5])
def test_powers_by_constants(exponent: float, isa: str) -> None:
    x = values("f32", 9)
    y = np.full_like(x, exponent)
    buffers = [dense("x", "f32", x.size), dense("y", "f32", x.size)]
    got = np.zeros(x.size, NUMPY["f32"])
    value = op("pow", load(buffers[0], var("i")), const(exponent))
    run_kernel(pointwise(value, buffers[1], buffers, x.size), isa, [x, got], end=x.size)
    with np.errstate(all="ignore"):
        # C's pow, which differs from roots at -0 and -infinity; what torch takes roots for is lowered to roots.
        want = x.astype(np.float64) ** y
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=4e-7)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
