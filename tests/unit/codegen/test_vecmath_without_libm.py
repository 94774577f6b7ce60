"""Elementary functions on targets without a C library: this CPU denied its own, and NVPTX."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from codegen_support import NUMPY, dense, load, pointwise, var
from scalar_target import target_named
from test_codegen_vecmath import floats, ulps

from lampwork.codegen.llvm.builder import Builder, Module
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
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_a_gpu_needs_no_function_of_a_library(name: str, lanes: int) -> None:
    assert not re.findall(r"\.extern|call\.", ptx(name, "f32", lanes))
