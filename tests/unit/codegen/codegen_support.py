"""Running kernels from tests: build, compile, call on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import numpy as np
from scalar_target import target_named

from lampwork import config
from lampwork.codegen.llvm.generator import LlvmGenerator
from lampwork.codegen.llvm.jit import as_function
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.nodes import Axis, Buffer, Const, Expr, Kernel, Load, Loop, Op, Stmt, Store

NUMPY = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
    "f8e4m3": np.uint8,
    "f8e5m2": np.uint8,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}


@cache
def generator(isa: str) -> LlvmGenerator:
    return LlvmGenerator(target_named(isa))


def run_kernel(
    kernel: Kernel, isa: str, arrays: Sequence[np.ndarray], *, begin=0, end=1, sizes: Sequence[int] = ()
) -> int:
    """Compile (with the IR verified) and call; the status."""
    with config.using(verify=True):
        compiled = generator(isa).compile_kernels([kernel])
    buffers = (ctypes.c_void_p * max(1, len(arrays)))(*[a.ctypes.data for a in arrays])
    numbers = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
    return as_function(compiled[kernel.name].address)(buffers, numbers, begin, end)


def dense(name: str, dtype: str, *shape: int | Index) -> Buffer:
    """A contiguous buffer."""
    sizes = [s if isinstance(s, Index) else Index.const(s) for s in shape]
    strides: list[Index] = []
    step = Index.const(1)
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return Buffer(name, dtype, tuple(sizes), tuple(reversed(strides)))


def var(name: str) -> Index:
    return Index.var(name)


def axis(name: str, extent: int | Index) -> Axis:
    return Axis(name, extent if isinstance(extent, Index) else Index.const(extent))


def op(name: str, *args: Expr, dtype: str | None = None) -> Op:
    return Op(name, args, dtype or args[-1].dtype)


def const(value, dtype: str = "f32") -> Const:
    return Const(value, dtype)


def load(buffer: Buffer, *index: Index | int, mask: Expr | None = None, other=0) -> Load:
    places = tuple(i if isinstance(i, Index) else Index.const(i) for i in index)
    return Load(buffer, places, mask, other)


def kernel(name: str, params: Sequence[Buffer], body: Sequence[Stmt], scratch=(), sizes=()) -> Kernel:
    return Kernel(name, tuple(params), tuple(sizes), tuple(scratch), tuple(body))


def pointwise(value: Expr, out: Buffer, params: Sequence[Buffer], n: int, name: str = "pointwise") -> Kernel:
    """out[i] = value, one flat loop over i."""
    loop = Loop(axis("i", n), "parallel-vector", (Store(out, (var("i"),), value),))
    return kernel(name, params, (loop,))


def map_op(name: str, isa: str, *inputs: np.ndarray, dtypes: Sequence[str], result: str) -> np.ndarray:
    """The operation `name` over flat arrays, through generated code."""
    n = inputs[0].size
    buffers = [dense(f"x{i}", dtype, n) for i, dtype in enumerate(dtypes)]
    out = dense("y", result, n)
    value = Op(name, tuple(load(buffer, var("i")) for buffer in buffers), result)
    array = np.zeros(n, NUMPY[result])
    status = run_kernel(pointwise(value, out, [*buffers, out], n), isa, [*inputs, array], end=n)
    assert status == 0
    return array
