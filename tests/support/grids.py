"""Kernels on grids, made from definitions as for a card, and run thread by thread or as code of this CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from lampwork import config
from lampwork.codegen.gpu.generator import EmulatingGenerator
from lampwork.codegen.gpu.nvidia import emulated
from lampwork.codegen.llvm.jit import as_function
from lampwork.codegen.target import Target
from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.ir.definitions import outs_of
from lampwork.loops.ir.expr import definition_exprs, loads
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.kernel import is_finished_by_last, parallel_extent
from lampwork.loops.ir.nodes import (
    FLOAT8,
    Barrier,
    Buffer,
    Definition,
    DType,
    Kernel,
    Load,
    Loop,
    Map,
    ReduceLoop,
    ScanLoop,
    Stmt,
)
from lampwork.loops.ir.symbols import likely
from lampwork.loops.ir.verify import verify_kernel
from lampwork.loops.reference.evaluate import NUMPY_DTYPES, evaluate_definitions
from lampwork.loops.reference.evaluate_grid import run_grid
from lampwork.loops.reference.evaluate_kernel import from_memory, to_memory
from lampwork.loops.reference.float8 import as_codes, from_codes
from lampwork.loops.schedule.grid import on_grid
from lampwork.loops.schedule.schedule import schedule

CARD = emulated()


@cache
def emulator() -> EmulatingGenerator:
    return EmulatingGenerator(CARD)


@dataclass
class Case:
    """Definitions, the names of what is asked for, and inputs. sizes: of symbols."""

    definitions: Sequence[Definition]
    outputs: frozenset[str]
    inputs: Mapping[str, np.ndarray]
    sizes: Mapping[str, int] = field(default_factory=dict)
    tolerance: float = 1e-4


def kernels_of(case: Case, target: Target = CARD) -> list[Kernel]:
    groups, _ = fuse(case.definitions, case.outputs, target)
    found = [each for n, group in enumerate(groups) for each in schedule(group, f"k{n}", target)]
    for kernel in found:
        verify_kernel(kernel)
    return found


def grids_of(case: Case, hints: Mapping[str, int] | None = None) -> list[Grid]:
    return [on_grid(kernel, hints or {}) for kernel in kernels_of(case)]


def buffers_of(definitions: Sequence[Definition]) -> dict[str, Buffer]:
    found: dict[str, Buffer] = {}
    for definition in definitions:
        stored = [Load(definition.out, definition.index)] if isinstance(definition, Map) else []
        for expr in (*definition_exprs(definition), *stored):
            found.update((load.buffer.name, load.buffer) for load in loads(expr))
        found.update((out.name, out) for out in outs_of(definition))
    return found


def check_grids(case: Case, grids: Sequence[Grid] | None = None, **options) -> None:
    """The grids, thread by thread and as code, give what the definitions say."""
    grids = grids_of(case) if grids is None else grids
    want = evaluate_definitions(case.definitions, case.inputs, sizes=case.sizes)
    for run in ("threads", "code"):
        memory = memory_of(case, grids)
        for grid in grids:
            if run == "threads":
                run_grid(grid, memory, sizes=case.sizes, **options)
            else:
                assert run_code(grid.kernel, memory, case.sizes) == 0
        buffers = buffers_of(case.definitions)
        for name in sorted(case.outputs):
            got = from_memory(buffers[name], memory[name], case.sizes)
            np.testing.assert_allclose(
                got, want[name], rtol=case.tolerance, atol=case.tolerance, err_msg=f"{run}: {name}"
            )


def memory_of(case: Case, grids: Sequence[Grid]) -> dict[str, np.ndarray]:
    buffers = buffers_of(case.definitions)
    memory = {
        name: to_memory(buffers[name], array, case.sizes)
        for name, array in case.inputs.items()
        if name in buffers
    }
    for grid in grids:
        for param in grid.kernel.params:
            if param.name not in memory:
                memory[param.name] = unset(param, case.sizes, buffers.get(param.name))
    for definition in case.definitions:
        if isinstance(definition, Map) and definition.combine and definition.onto:
            made = memory.get(definition.onto.name, memory[definition.out.name])
            memory[definition.out.name] = memory[definition.onto.name] = made
    return memory


def unset(param: Buffer, sizes: Mapping[str, int], logical: Buffer | None) -> np.ndarray:
    """Flat memory that shows in results where nothing writes to it."""
    buffer = logical or param
    shape = tuple(likely(size, sizes) for size in buffer.shape)
    flat = to_memory(buffer, np.zeros(shape, NUMPY_DTYPES[buffer.dtype]), sizes)
    flat.fill(np.nan if np.issubdtype(flat.dtype, np.floating) else 1)
    return flat


# --- code of this CPU -------------------------------------------------------------------------------------------------


def run_code(
    kernel: Kernel,
    memory: Mapping[str, np.ndarray],
    sizes: Mapping[str, int] | None = None,
    *,
    aligned: bool = True,
) -> int:
    """Compiles a kernel onto a grid of loops, and calls it; bf16 memory is as float32, as the interpreters have it."""
    sizes = sizes or {}
    with config.using(verify=True):
        compiled = emulator().compile_kernels([kernel])
    arrays = {
        param.name: placed(as_stored(memory[param.name], param.dtype), aligned) for param in kernel.params
    }
    buffers = (ctypes.c_void_p * max(1, len(arrays)))(*[array.ctypes.data for array in arrays.values()])
    numbers = (ctypes.c_int64 * max(1, len(kernel.sizes)))(*[sizes[name] for name in kernel.sizes])
    extent = likely(parallel_extent(kernel), sizes)
    middle = 0 if is_finished_by_last(kernel) else extent // 3
    function = as_function(compiled[kernel.name].address)
    status = function(buffers, numbers, 0, middle) if middle else 0
    status |= function(buffers, numbers, middle, extent)
    for param in kernel.params:
        memory[param.name][...] = from_stored(arrays[param.name], param.dtype)
    return status


def placed(array: np.ndarray, aligned: bool) -> np.ndarray:
    """A copy at a multiple of 16 bytes, or one element behind one."""
    room = np.zeros(array.nbytes + 32, np.uint8)
    start = -room.ctypes.data % 16 + (0 if aligned else array.itemsize)
    copy = room[start : start + array.nbytes].view(array.dtype)
    copy[...] = array
    return copy


def as_stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype in FLOAT8:
        return as_codes(array, dtype)
    return (array.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else array


def from_stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype in FLOAT8:
        return from_codes(array, dtype)
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else array


# --- barriers ---------------------------------------------------------------------------------------------------------


def barriers(body: Sequence[Stmt]) -> int:
    return sum(
        isinstance(stmt, Barrier) + barriers(getattr(stmt, "body", ())) + barriers(getattr(stmt, "after", ()))
        for stmt in body
    )


def without_barrier(grid: Grid, number: int) -> Grid:
    """The grid without its barrier of this number."""
    left = [number]

    def walk(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        kept: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, Barrier):
                left[0] -= 1
                if left[0] == -1:
                    continue
            if isinstance(stmt, ScanLoop):
                inside = walk(stmt.body)
                stmt = replace(stmt, body=inside, after=walk(stmt.after))
            elif isinstance(stmt, Loop | ReduceLoop):
                stmt = replace(stmt, body=walk(stmt.body))
            kept.append(stmt)
        return tuple(kept)

    return replace(grid, kernel=replace(grid.kernel, body=walk(grid.kernel.body)))
