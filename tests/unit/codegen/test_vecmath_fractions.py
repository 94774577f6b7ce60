"""sigmoid and tanh as fractions, against float64."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from codegen_support import generator
from test_codegen_vecmath import floats, ulps

from lampwork.codegen.llvm.builder import Builder, Module, Value
from lampwork.codegen.llvm.jit import as_function
from lampwork.codegen.llvm.templates.code import function
from lampwork.codegen.llvm.templates.microkernel import load_vector, store_vector
from lampwork.codegen.llvm.vecmath_fractions import sigmoid_denominator, tanh_fraction


def run(name: str, isa: str, x: np.ndarray) -> np.ndarray:
    """The fraction over a flat array of whole vectors."""
    jit = generator(isa).jit
    dtype = "f32" if x.dtype == np.float32 else "f64"
    lanes = jit.target.lanes(dtype)
    b = Builder(Module(), jit.target)
    source, out = (
        b.emit(f"load ptr, ptr {place}, align 8", "i64", 1, pure=False).text
        for place in (
            "%buffers",
            b.emit("getelementptr i64, ptr %buffers, i64 1", "i64", 1).text,
        )
    )
    with b.loop(Value("%begin", "i64"), Value("%end", "i64"), lanes) as scope:
        value = load_vector(b, dtype, lanes, b.element(source, dtype, scope.index).text)
        top, bottom = tanh_fraction(b, value) if name == "tanh" else (1.0, sigmoid_denominator(b, value))
        store_vector(b, b.div(top, bottom), b.element(out, dtype, scope.index).text)
    code = jit.compile(function(b, "fraction"), ["fraction"])
    made = np.zeros_like(x)
    count = x.size // 16 * 16
    buffers = (ctypes.c_void_p * 2)(x.ctypes.data, made.ctypes.data)
    as_function(code.addresses["fraction"])(buffers, None, 0, count)
    return made[:count]


def wanted(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        x = x.astype(np.float64)
        return np.tanh(x) if name == "tanh" else 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_single_precision(name: str, isa: str) -> None:
    x = floats()
    got = run(name, isa, x)
    want = wanted(name, x[: got.size])
    # Of what is smaller than the smallest normal number, or nearly, no digits are asked for.
    tiny = np.abs(want) < 1e-37
    assert np.all(np.abs(got[tiny] - want[tiny]) < 1e-37)
    error = ulps(got, want)
    assert error[~tiny].max() < 5
    assert error[np.abs(x[: got.size]) <= 20].max() < 3


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_double_precision(name: str, isa: str) -> None:
    x = np.linspace(-30, 30, 4096)
    np.testing.assert_allclose(run(name, isa, x), wanted(name, x), rtol=1e-15)


def test_a_sigmoid_of_no_size_is_zero(isa: str) -> None:
    x = np.full(16, -np.inf, np.float32)
    assert not run("sigmoid", isa, x).any()
