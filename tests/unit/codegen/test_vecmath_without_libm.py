"""Elementary functions on targets without a C library: this CPU denied its own, and NVPTX."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from codegen_support import NUMPY, dense, load, pointwise, var
from scalar_target import target_named
from test_codegen_vecmath import REFERENCE, floats, ulps

from lampwork.codegen.llvm import vecmath, vecmath_wide
from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.emit_ops import emit_op
from lampwork.codegen.llvm.generator import LlvmGenerator
from lampwork.codegen.llvm.jit import as_function
from lampwork.codegen.llvm.types import REGISTER, vector_type
from lampwork.codegen.target import Target
from lampwork.loops.ir.nodes import Op

HOST = target_named("")
VECTORS = replace(HOST, name="without libm", has_libm=False)
LANE = replace(VECTORS, name="one lane without libm", vector_bytes=0)
PAIRS = ("atan2", "hypot", "pow", "fmod", "rem", "floordiv")

needs_fma = pytest.mark.skipif(not HOST.has_fma, reason="double functions are made of fused multiplications")


@cache
def generator(target: Target) -> LlvmGenerator:
    return LlvmGenerator(target)


def evaluate(target: Target, name: str, *inputs: np.ndarray) -> np.ndarray:
    """The operation `name` over flat arrays of one dtype."""
    dtype = "f32" if inputs[0].dtype == np.float32 else "f64"
    size = inputs[0].size
    buffers = [dense(f"x{i}", dtype, size) for i in range(len(inputs))]
    out = dense("y", dtype, size)
    value = Op(name, tuple(load(buffer, var("i")) for buffer in buffers), dtype)
    kernel = pointwise(value, out, [*buffers, out], size)
    made = np.zeros(size, NUMPY[dtype])
    compiled = generator(target).compile_kernels([kernel])
    pointers = (ctypes.c_void_p * (len(inputs) + 1))(*[array.ctypes.data for array in (*inputs, made)])
    assert as_function(compiled[kernel.name].address)(pointers, (ctypes.c_int64 * 1)(), 0, size) == 0
    return made


@pytest.mark.parametrize(
    "target", [VECTORS, LANE, replace(LANE, has_fma=False)], ids=["vectors", "lane", "unfused"]
)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_float32_angles_of_every_size_are_within_two_ulp(name: str, target: Target) -> None:
    powers = np.float32(2) ** np.arange(15, 128, dtype=np.float32)
    x = np.concatenate([floats(), powers, -powers, np.nextafter(powers, np.float32(np.inf))])
    got = evaluate(target, name, x)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x.astype(np.float64))
    error = ulps(got, want)
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, f"{name}({x[worst]!r}) = {got[worst]!r}, not {want[worst]!r}"


def power_of_two(calls: list[Value], sign: int) -> Callable[[Builder, Value], Value]:
    """An instruction for 2**x that is off by an ulp: half of one before it is rounded. `calls` gets its operands."""

    def exp2(b: Builder, x: Value) -> Value:
        calls.append(x)
        exact = vecmath_wide.exp_f64(b, b.mul(b.convert("fpext", x, "f64"), math.log(2)))
        half = b.select(b.cmp("ge", exact, 1.0), b.const(sign * 2.0**-24, "f64"), sign * 2.0**-25)
        near = b.and_(b.cmp("gt", exact, 0.5), b.cmp("lt", exact, 2.0))
        return b.convert("fptrunc", b.select(near, b.add(exact, half), exact), "f32")

    return exp2


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", ["exp", "exp2", "erf", "sigmoid", "softplus", "tanh"])
def test_with_an_instruction_for_powers_of_two_they_are_within_two_ulp(name: str, sign: int) -> None:
    calls: list[Value] = []
    target = replace(VECTORS, name="with exp2", exp2=power_of_two(calls, sign))
    x = np.concatenate([floats(), np.linspace(-110, 92, 100_001, dtype=np.float32)])
    got = evaluate(target, name, x)
    with np.errstate(all="ignore"):
        want = REFERENCE[name](x.astype(np.float64))
    error = ulps(got, want)
    worst = int(np.argmax(error))
    # An ulp of a power just above 2^-n is two of a sigmoid just below it.
    most = 2.5 if name == "sigmoid" else 2.0
    assert error[worst] <= most, f"{name}({x[worst]!r}) = {got[worst]!r}, not {want[worst]!r}"
    assert bool(calls) == (name != "softplus")


@pytest.mark.parametrize("sign", [1, -1])
def test_with_an_instruction_for_powers_of_two_the_normal_distribution_is_exact_to_its_promise(
    sign: int,
) -> None:
    calls: list[Value] = []
    x = np.linspace(-15, 15, 100_001, dtype=np.float32)
    got = evaluate(replace(VECTORS, name="with exp2", exp2=power_of_two(calls, sign)), "ndtr", x).astype(
        float
    )
    want = np.vectorize(math.erfc)(-x.astype(np.float64) * math.sqrt(0.5)) / 2
    assert calls and np.abs(got - want).max() <= 2.0**-21.5
    near = (x < -1) & (x > -5.7)
    assert (np.abs(got - want) / want)[near].max() <= 2.0**-9


# --- float64 ----------------------------------------------------------------------------------------------------------

SPECIALS = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 0.1, 0.75, 10.0, 1000.0]
    + [5e-324, -5e-324, 2.0**-1022, 1.7976931348623157e308, -1.7976931348623157e308, 2.0**1023, 1 - 2.0**-53]
    + [
        np.pi / 2,
        np.pi,
        1e22,
        6381956970095103 * 2.0**797,
        2.0**53,
        2.0**53 + 2,
        -(2.0**53) - 2,
        1 + 2.0**-52,
    ]
    + [709.78, 710.4, 710.5, -745.1, 1023.999, 1024.0, -1074.0, -1074.5, -1022.5, 27.2, -37.6]
)
RNG = np.random.default_rng(11)
MANY = 8_000


def bits(count: int = MANY) -> np.ndarray:
    """Numbers of every exponent, NaN among them."""
    return RNG.integers(0, 2**64, count, dtype=np.uint64).view(np.float64)


def between(low: float, high: float) -> np.ndarray:
    return RNG.uniform(low, high, MANY)


def sizes(low: float, high: float) -> np.ndarray:
    """Numbers between e ** low and e ** high, and their negatives."""
    return np.exp(between(low, high)) * RNG.choice([-1.0, 1.0], MANY)


UNIT = (between(-1, 1), sizes(-40, 0), 1 - np.exp(between(-36, -1)))
ANGLES = (between(-10, 10), sizes(-40, 709), np.round(between(1, 1e6)) * (np.pi / 2))
POSITIVE = (
    between(0.4, 2.5),
    1 + sizes(-36, -1),
    10.0 ** np.arange(-300, 300),
    2.0 ** np.arange(-1074, 1024),
)
ORDINARY = (between(-3, 3), between(-711, 711), sizes(-40, 6))
INPUTS = {
    "sin": ANGLES, "cos": ANGLES, "tan": ANGLES, "asin": UNIT, "acos": UNIT, "atanh": UNIT, "atan": ORDINARY,
    "exp2": (*ORDINARY, between(-1076, -1020), between(-1, 1025)), "log2": POSITIVE, "log10": POSITIVE,
    "sinh": ORDINARY, "cosh": ORDINARY, "asinh": (*ORDINARY, sizes(20, 709)),
    "acosh": (1 + np.exp(between(-36, 709)), between(1, 3)),
}  # fmt: skip
NUMPY_NAMES = {name: f"arc{name[1:]}" for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")}
NUMPY_NAMES |= {"pow": "power", "atan2": "arctan2"}

extended = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="the reference needs extended doubles"
)
double_targets = pytest.mark.parametrize(
    "target", [VECTORS, LANE, VECTORS.relaxed()], ids=["vectors", "lane", "fast"]
)


def worst_of(got: np.ndarray, want: np.ndarray) -> tuple[float, int]:
    """The largest error in units in the last place of a double, and where it is."""
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float64)
        unit = np.spacing(np.maximum(np.abs(rounded), 2.0**-1022))
        error = np.abs(got.astype(np.longdouble) - want) / unit
    same = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
    # One unit beyond the largest double is infinity.
    largest = np.finfo(np.float64).max
    near = (np.minimum(np.abs(got), np.abs(want)) >= largest) & (np.abs(want) < 2 * np.longdouble(largest))
    zeros = (got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(rounded))
    finite = np.isfinite(got) & np.isfinite(rounded)
    error = np.where((same | near) & ~zeros, 0.0, np.where(finite & ~zeros, error, np.inf))
    return float(error.max()), int(np.argmax(error))


def assert_close(target: Target, name: str, want: np.ndarray, *inputs: np.ndarray) -> None:
    got = evaluate(target, name, *inputs)
    error, worst = worst_of(got, want)
    at = ", ".join(repr(float(x[worst])) for x in inputs)
    print(f"{name}: {error:.2f} ulp at {at}")
    assert error <= 2.0, f"{name}({at}) = {got[worst]!r}, not {want[worst]!r}"


@needs_fma
@extended
@double_targets
@pytest.mark.parametrize("name", sorted(INPUTS))
def test_float64_functions_are_within_two_ulp(name: str, target: Target) -> None:
    x = np.concatenate([*INPUTS[name], SPECIALS, bits()])
    with np.errstate(all="ignore"):
        want = getattr(np, NUMPY_NAMES.get(name, name))(x.astype(np.longdouble))
    assert_close(target, name, want, x)


@needs_fma
@pytest.mark.parametrize("name", ["sinh", "cosh", "atanh"])
def test_some_functions_are_no_calls_of_the_library_where_there_is_one(name: str) -> None:
    x = np.concatenate([*INPUTS[name], SPECIALS, bits()])
    assert np.array_equal(evaluate(HOST, name, x), evaluate(VECTORS, name, x), equal_nan=True)


@needs_fma
@double_targets
@pytest.mark.parametrize("name", ["erfc", "ndtr"])
def test_float64_tails_of_the_normal_distribution_are_within_two_ulp(name: str, target: Target) -> None:
    mpmath = pytest.importorskip("mpmath")
    x = np.concatenate([between(-3, 3)[:700], between(-39, 28)[:700], sizes(-40, 1)[:300], SPECIALS])

    def exact(number: float) -> tuple[float, float]:
        """As a sum of two doubles."""
        if number != number:
            return number, 0.0
        with mpmath.workprec(150):
            limited = mpmath.mpf(min(max(number, -45.0), 45.0))
            value = mpmath.erfc(limited) if name == "erfc" else mpmath.erfc(-limited / mpmath.sqrt(2)) / 2
            return float(value), float(value - float(value))

    want = np.array([np.longdouble(high) + np.longdouble(low) for high, low in map(exact, x.tolist())])
    assert_close(target, name, want, x)


def _pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    grid = np.stack(np.meshgrid(SPECIALS, SPECIALS)).reshape(2, -1)
    base = np.abs(sizes(-700, 700))
    parts = [grid, np.stack([bits(), bits()]), np.stack([between(-10, 10), between(-10, 10)])]
    if name == "pow":
        parts += [
            np.stack([base, between(-746, 710) / np.log(base)]),
            np.stack([1 + sizes(-36, -1), sizes(0, 40)]),
        ]
        parts += [np.stack([between(-10, 10), np.round(between(-30, 30))])]
    else:
        parts += [
            np.stack([sizes(-700, 700), sizes(-700, 700)]),
            np.stack([sizes(-745, -700), sizes(-745, -700)]),
        ]
    x, y = np.concatenate(parts, axis=1)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


@needs_fma
@extended
@double_targets
@pytest.mark.parametrize("name", ["pow", "atan2", "hypot"])
def test_float64_functions_of_two_arguments_are_within_two_ulp(name: str, target: Target) -> None:
    x, y = _pairs(name)
    with np.errstate(all="ignore"):
        want = getattr(np, NUMPY_NAMES.get(name, name))(x.astype(np.longdouble), y.astype(np.longdouble))
    assert_close(target, name, want, x, y)


@pytest.mark.parametrize(
    "target", [VECTORS, LANE, replace(LANE, has_fma=False)], ids=["vectors", "lane", "unfused"]
)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_remainders_of_far_quotients_are_exact(dtype: str, target: Target) -> None:
    if dtype == "f64" and not target.has_fma:
        pytest.skip("double functions are made of fused multiplications")
    x, y = _pairs("fmod")
    with np.errstate(all="ignore"):
        x, y = x.astype(NUMPY[dtype]), y.astype(NUMPY[dtype])
        want = np.fmod(x, y)
    got = evaluate(target, "fmod", x, y)
    assert np.array_equal(got, want, equal_nan=True)
    numbers = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


# --- NVPTX ------------------------------------------------------------------------------------------------------------


def ptx(name: str, dtype: str, lanes: int) -> str:
    """PTX of a function that stores `name` of what it loads."""
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = Module()
    b = Builder(module, replace(LANE, name="gpu", has_fma=True))
    type_ = vector_type(REGISTER[dtype], lanes)
    sources = ["%x", "%y"][: 2 if name in PAIRS else 1]
    args = [b.emit(f"load {type_}, ptr {source}", dtype, lanes, pure=False) for source in sources]
    b.line(f"store {b.typed(emit_op(b, name, tuple(args), dtype))}, ptr %out")
    b.line("ret void")
    module.functions.append(f"define void @f(ptr %x, ptr %y, ptr %out) {{\n{b.body()}\n}}")
    made = llvm.parse_assembly(module.text)
    made.verify()
    triple = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return triple.create_target_machine(cpu="sm_80", features="+ptx70").emit_assembly(made)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted([*vecmath.FUNCTIONS, "pow", "fmod", "rem", "floordiv"]))
def test_a_gpu_needs_no_function_of_a_library(name: str, dtype: str, lanes: int) -> None:
    assert not re.findall(r"\.extern|call\.", ptx(name, dtype, lanes))
