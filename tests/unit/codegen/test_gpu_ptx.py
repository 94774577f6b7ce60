"""Code for NVIDIA cards: LLVM makes PTX of every kernel, and ptxas, where there is one, assembles it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import grid_cases as cases
import llvmlite.binding as llvm
import ptxas
import pytest
from codegen_support import axis, dense, kernel, load, var
from grids import kernels_of

from lampwork.codegen.gpu.device import LAYOUT, TRIPLE
from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.nvidia import describe
from lampwork.loops.ir.nodes import FLOAT8, Kernel, Loop, Op, Store
from lampwork.loops.ir.ops import OPS
from lampwork.loops.schedule.grid import on_grid
from lampwork.standard import functools

ASSEMBLED, OTHERS = (80, 90, 100), (70, 75, 86, 120)
SIMPLE = 128  # registers that a thread may take
GOLDEN_LLVM = 22  # the release whose PTX is kept

Make = Callable[[], cases.Case]
BY_DTYPE: dict[str, Make] = {
    f"{make.__name__} of {dtype}": functools.partial(make, dtype=dtype)
    for make in (cases.flat, cases.softmax, cases.rows)
    for dtype in cases.FLOATS
} | {f"flat of {dtype}": functools.partial(cases.flat, dtype=dtype) for dtype in ("i64", "i32", "u8", "bool")}
BY_DTYPE |= {f"{dtype} and f32": functools.partial(cases.float8, dtype) for dtype in sorted(FLOAT8)}
WIDE: dict[str, Make] = {
    "softmax of a block": functools.partial(cases.softmax, 3, 2048),
    "layer_norm of bf16": functools.partial(cases.layer_norm, 64, 768, "bf16"),
    "argmax of a block": functools.partial(cases.rows, "argmax", 3, 3000),
    "scan of a block": functools.partial(cases.scan, n=3000),
}
# Numbers of the generator that CUDA devices have.
RANDOM: dict[str, Make] = {
    "dropout in vectors": cases.dropout,
    "dropout of single elements": functools.partial(cases.dropout, width=1),
}
CASES = cases.FAMILIES | cases.CUT | BY_DTYPE | WIDE | RANDOM


@functools.cache
def generator(capability: int) -> GpuGenerator:
    return GpuGenerator(describe(capability))


def ptx_of(each: Kernel, capability: int) -> str:
    of = generator(capability)
    return of.jit.emit(of.emit(on_grid(each), "lw_kernel"), 0, verify=True).decode()


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Lines of what ptxas says, printed in the end (`pytest -s`)."""
    lines: list[str] = []
    yield lines
    print("\n" + "\n".join(sorted(lines)))


@pytest.mark.parametrize("capability", OTHERS)
def test_every_card_has_code(capability: int) -> None:
    for make in (*cases.FAMILIES.values(), *WIDE.values()):
        for each in kernels_of(make()):
            text = ptx_of(each, capability)
            assert f".target sm_{capability}" in text and ".entry lw_kernel(" in text


@pytest.mark.parametrize("capability", ASSEMBLED)
@pytest.mark.parametrize("name", CASES)
def test_ptxas_takes_it(name: str, capability: int, table: list[str]) -> None:
    if capability not in ptxas.supported():
        pytest.skip(f"this ptxas does not know sm_{capability}")
    for each in kernels_of(CASES[name]()):
        found = ptxas.assemble(ptx_of(each, capability), capability)
        table.append(
            f"{name:24} sm_{capability:<4} {found.registers:4} registers {found.spills:4} bytes spilled"
            f" {found.shared:6} bytes shared"
        )
        # Divisions are calls of ptxas's own, around which registers are saved: those of float64, and rare float32 ones.
        # Long rows keep what is one value a row there.
        allowed = 128 if "f64" in name else 48 if name in cases.CUT else 0
        assert found.spills <= allowed and 0 < found.registers <= SIMPLE, table[-1]


# --- operations -------------------------------------------------------------------------------------------------------

INTEGERS = {"bitnot", "and", "or", "xor", "shl", "shr"}
ELSEWHERE = {"cast", "philox", "require", "from_bits", "where", "unrounded"}


def operations(dtype: str) -> list[Kernel]:
    """All operations that a dtype has, some to a kernel."""
    is_float = dtype in cases.FLOATS
    names = [
        name
        for name, info in OPS.items()
        if name not in ELSEWHERE and (name not in INTEGERS if is_float else info.result != "float")
    ]
    inputs = [dense(name, dtype, 999) for name in "abc"]
    found: list[Kernel] = []
    for start in range(0, len(names), 8):
        stores = []
        for name in names[start : start + 8]:
            info = OPS[name]
            out = dense(f"y_{name}", "bool" if info.result == "bool" else dtype, 999)
            value = Op(name, tuple(load(each, var("i")) for each in inputs[: info.arity]), out.dtype)
            stores.append(Store(out, (var("i"),), value))
        params = [*inputs, *(store.buffer for store in stores)]
        found.append(kernel(f"ops{start}", params, [Loop(axis("i", 999), "parallel-vector", tuple(stores))]))
    return found


@pytest.mark.parametrize("dtype", [*cases.FLOATS, "i64", "i32", "u8"])
def test_operations_need_no_library(dtype: str) -> None:
    """Nothing is left to call: a card has no C library."""
    for each in operations(dtype):
        text = ptx_of(each, 80)
        assert ".extern .func" not in text, text[: text.index(".entry")]
        if ptxas.find() is not None and dtype in ("f32", "f64"):
            assert ptxas.assemble(text, 80).registers <= 255


def test_an_index_out_of_range_is_asserted() -> None:
    (each,) = kernels_of(cases.gather())
    text = ptx_of(each, 80)
    assert "__assertfail" in text and "an index is out of range" in _strings(text)


COUNTS = """
define ptx_kernel void @lw_kernel(ptr %out, i64 %i) {
  %digit = urem i64 %i, 5
  %first = mul i64 %digit, 8
  %last = add i64 %first, 2
  %end = udiv i64 %last, 5
  %begin = udiv i64 %first, 5
  %count = sub i64 %end, %begin
  %value = sitofp i64 %count to float
  store float %value, ptr %out
  ret void
}
"""


def test_differences_that_ptxas_gets_wrong() -> None:
    """The high half of a product of 32 bits is hidden from it before it becomes the minuend of a difference."""
    module = f'target triple = "{TRIPLE}"\ntarget datalayout = "{LAYOUT}"\n{COUNTS}'
    text = generator(90).jit.emit(module, 0, verify=True).decode()
    high = re.findall(r"mul\.hi\.u32 +\t(%r\d+),.*\n(.*)", text)
    assert high and "sub.s64" in text
    for register, after in high:
        assert after.split() == ["xor.b32", f"{register},", f"{register},", "%lw_zero;"]
    assert text.count("mov.u32 \t%lw_zero, %tid.z;") == 1
    if ptxas.find() is not None:
        ptxas.assemble(text, 90)


def _strings(text: str) -> str:
    """The bytes of a module's constants as text."""
    lists = re.findall(r"\.b8 .*\{(.*)\}", text)
    return "".join(chr(int(part)) for each in lists for part in each.split(","))


# --- golden -----------------------------------------------------------------------------------------------------------

GOLDEN: dict[str, Make] = {
    "flat": functools.partial(cases.flat, 1 << 20),
    "softmax": functools.partial(cases.softmax, 4096, 128),
    "total": functools.partial(cases.rows, "sum", 4096, 2048),
    "transpose": functools.partial(cases.transpose, 512, 512),
    "dropout": functools.partial(cases.dropout, 512, 1024),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    """Several elements a thread; a row in a warp; a sum across a block; a transposed copy."""
    if llvm.llvm_version_info[0] != GOLDEN_LLVM:
        pytest.skip(f"the texts are those of LLVM {GOLDEN_LLVM}")
    kernels = kernels_of(GOLDEN[name]())
    golden(f"ptx/{name}", "\n".join(ptx_of(each, 80) for each in kernels))


def test_equal_kernels_have_equal_text() -> None:
    (each,) = kernels_of(cases.softmax())
    assert ptx_of(each, 80) == ptx_of(replace(each), 80)
