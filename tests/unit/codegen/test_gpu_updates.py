"""Values combined with memory by the threads of a card: on the interpreter of grids, as code of this CPU, on the
simulated card, and as PTX."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import replace

import grid_cases as cases
import llvmlite.binding as llvm
import numpy as np
import ptxas
import pytest
from grids import Case, check_grids, grids_of, kernels_of, memory_of
from loops_build import I, at, axes, buffer, op, pointwise
from simulated import MODEL, AssertionOfKernel, ForbiddenError, run_simulated
from test_gpu_ptx import GOLDEN_LLVM, generator, ptx_of
from test_gpu_simulated import check, of_threads

from lampwork.codegen.gpu.device import emit_device
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.llvm.emit_kernel import emit_kernel
from lampwork.codegen.llvm.isa.x86 import host_isa
from lampwork.errors import CodegenError, InvalidLoopsError
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.index import Index
from lampwork.loops.ir.kernel import make_kernel, statements
from lampwork.loops.ir.nodes import Const, Kernel, Load, Loop, Map, Store
from lampwork.loops.ir.verify import verify_definitions, verify_kernel
from lampwork.loops.reference.evaluate_grid import RaceError, run_grid
from lampwork.loops.schedule.grid import on_grid

DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32")
OPS = ("sum", "prod", "max", "min")
MAKE = {"rows": cases.updated, "elements": cases.updated_elements, "numbers": cases.updated_numbers}


def small(case: Case, how: str) -> Case:
    """With values of which no product is rounded."""
    if how == "prod":
        for name, array in case.inputs.items():
            if name != "ids":
                array[...] = np.where(array > 0, 1, -1) if array.dtype.kind == "f" else 1
    return case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", OPS)
@pytest.mark.parametrize("name", MAKE)
def test_as_defined(name: str, how: str, dtype: str) -> None:
    case = small(MAKE[name](how, dtype=dtype), how)
    check_grids(case)
    check(case, blocks=2)


@pytest.mark.parametrize("threads", [2, 8, 32, 64])
def test_groups_of_every_size(threads: int) -> None:
    case = cases.updated(m=20, n=100)
    check(
        case, [each if each.is_flat else of_threads(each, threads) for each in grids_of(case)], seed=threads
    )


@pytest.mark.parametrize("how", ["max", "min"])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_extrema_of_numbers_that_are_none(how: str, dtype: str) -> None:
    """NaN wins, from memory and from values, whatever its sign."""
    case = cases.updated_numbers(how, 60, dtype)
    s, x, ids = (case.inputs[name] for name in ("s", "x", "ids"))
    ids[:] = np.arange(60) % 5
    s[ids == 1], s[6], s[ids == 2], s[8] = -np.inf, np.nan, np.inf, -np.nan
    x[3], x[4] = -np.nan, -0.0
    check_grids(case)
    check(case)


def test_of_any_value_one_stays() -> None:
    """Which of several is put at a place nobody says."""
    case = cases.updated_numbers("put", 300)
    grids = grids_of(case)
    memory = memory_of(case, grids)
    for grid in grids:
        run_simulated(grid, memory)
    for place in range(5):
        assert memory["y"][place] in case.inputs["s"][case.inputs["ids"] == place]


@pytest.mark.parametrize("dtype", ["u8", "bool", "i16", "f64"])
def test_elements_of_every_size_are_put(dtype: str) -> None:
    case = cases.updated_numbers("put", 4, dtype)
    case.inputs["ids"][:] = (3, 0, 1, 4)
    check_grids(case)
    check(case)


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "12"))))
def test_random_updates_fuzz(seed: int) -> None:
    """Of any rank, in any order of dimensions, of values and places that are computed where they are used."""
    pick = random.Random(seed)
    rank = pick.randint(1, 3)
    shape = [pick.choice((1, 2, 5, 8, 33)) for _ in range(rank)]
    dim, count = pick.randrange(rank), pick.choice((1, 3, 40, 64))
    points = [*shape[:dim], count, *shape[dim + 1 :]]
    how, dtype = pick.choice(("sum", "max", "min")), pick.choice(("f64", "f32", "i64", "i32"))
    order = pick.sample(range(rank), rank)
    strides, step = [0] * rank, 1
    for each in order:
        strides[each], step = step, step * shape[each]
    x, base, y = (buffer(name, *shape, dtype=dtype, strides=tuple(strides)) for name in ("x", "base", "y"))
    by_rows = pick.random() < 0.5
    ids = buffer("ids", count, dtype="i64") if by_rows else buffer("ids", *points, dtype="i64")
    s = buffer("s", *points, dtype=dtype)
    found = at(ids, I[dim]) if by_rows else at(ids)
    if pick.random() < 0.5:
        found = op("sub", Const(shape[dim] - 1, "i64"), found)
    value = at(s)
    if pick.random() < 0.5:
        value = op("add", op("mul", value, value), value)
    place = tuple(Index.indirect(found, shape[dim]) if n == dim else I[n] for n in range(rank))
    definitions = [pointwise(base, at(x)), Map(y, axes(*points), place, value, base, how)]
    case = cases.of(definitions, "y", x, ids, s, seed=seed)
    case.inputs["ids"][...] %= shape[dim]
    check_grids(case, seed=seed)
    check(case, blocks=1 + seed % 3, seed=seed)


# --- what must not pass -----------------------------------------------------------------------------------------------


def update_of(case: Case) -> tuple[Grid, Grid]:
    fill, update = grids_of(case)
    return fill, update


def with_store(grid: Grid, change: Callable[[Store], Store]) -> Grid:
    """The grid with its store changed."""

    def changed(stmt):
        if isinstance(stmt, Store):
            return change(stmt)
        return replace(stmt, body=tuple(map(changed, stmt.body))) if isinstance(stmt, Loop) else stmt

    body = tuple(map(changed, grid.kernel.body))
    return replace(grid, kernel=make_kernel("kernel", body, ()))


def test_plain_stores_of_several_threads_race() -> None:
    case = cases.updated_numbers()
    plain = with_store(update_of(case)[1], lambda store: replace(store, combine=None))
    with pytest.raises(RaceError, match="y.* is written"):
        run_grid(plain, memory_of(case, [plain]))
    with pytest.raises(ForbiddenError, match="a race with a thread that writes"):
        run_simulated(plain, memory_of(case, [plain]))


def test_what_is_updated_is_not_read() -> None:
    case = cases.updated_numbers()

    def reads(store: Store) -> Store:
        return replace(store, value=Load(store.buffer, store.index))

    grid = with_store(update_of(case)[1], reads)
    with pytest.raises(InvalidLoopsError, match="y is updated, and used otherwise"):
        verify_kernel(grid.kernel)
    with pytest.raises(RaceError, match="y.* is updated"):
        run_grid(grid, memory_of(case, [grid]))
    with pytest.raises(ForbiddenError, match="updates what a thread reads|reaches what threads update"):
        run_simulated(grid, memory_of(case, [grid]))


def test_two_steps_are_no_update() -> None:
    """A sum that is loaded and stored."""
    case = cases.updated_numbers()
    _, grid = update_of(case)
    text = emit_device(grid, MODEL, "lw_kernel")
    add = re.compile(
        r'(%\w+) = atomicrmw fadd ptr (%\w+), float (%\w+) syncscope\("device"\) monotonic, align 4'
    )
    steps = r"\1a = load float, ptr \2, align 4\n  \1 = fadd float \1a, \3\n  store float \1, ptr \2, align 4"
    mutant = add.sub(steps, text)
    assert mutant != text
    with pytest.raises(ForbiddenError, match="a race"):
        run_simulated(grid, memory_of(case, [grid]), text=mutant)


@pytest.mark.parametrize("place", [5, -1])
def test_an_index_out_of_range_is_asserted(place: int) -> None:
    case = cases.updated_numbers()
    case.inputs["ids"][7] = place
    _, grid = update_of(case)
    with pytest.raises(AssertionOfKernel, match="an index is out of range"):
        run_simulated(grid, memory_of(case, [grid]))
    with pytest.raises(IndexError):
        run_grid(grid, memory_of(case, [grid]))


def test_kernels_of_cpus_have_none() -> None:
    (_, update) = kernels_of(cases.updated())
    with pytest.raises(CodegenError, match="no code for what k1 combines with memory"):
        emit_kernel(update, host_isa())


def test_definitions_that_are_wrong() -> None:
    fill, update = cases.updated().definitions
    verify_definitions([fill, update])
    with pytest.raises(InvalidLoopsError, match="no definition has made it"):
        verify_definitions([update])
    with pytest.raises(InvalidLoopsError, match="base is read, and updated in place"):
        verify_definitions(
            [fill, update, replace(fill, out=replace(fill.out, name="z"), value=Load(fill.out, fill.index))]
        )
    with pytest.raises(InvalidLoopsError, match="a sum with nothing"):
        verify_definitions([replace(update, onto=None)])
    with pytest.raises(InvalidLoopsError, match="a sum of bool in memory"):
        verify_definitions(cases.updated(dtype="bool").definitions)


# --- PTX --------------------------------------------------------------------------------------------------------------

INSTRUCTIONS = {
    ("f32", "sum", 80): r"atom\.global\.add\.f32",
    ("f64", "sum", 80): r"atom\.global\.add\.f64",
    ("i64", "sum", 80): r"atom\.global\.add\.u64",
    ("i32", "max", 80): r"atom\.global\.max\.s32",
    ("i64", "min", 80): r"atom\.global\.min\.s64",
    ("f16", "sum", 70): r"red\.relaxed\.gpu\.global\.add\.noftz\.f16x2",
    ("f16", "sum", 90): r"red\.relaxed\.gpu\.global\.add\.noftz\.f16x2",
    ("bf16", "sum", 90): r"red\.relaxed\.gpu\.global\.add\.noftz\.bf16x2",
    ("bf16", "sum", 80): r"atom\.relaxed\.gpu\.global\.cas",
    ("f32", "max", 90): r"atom\.relaxed\.gpu\.global\.cas\.b32",
    ("f64", "prod", 90): r"atom\.relaxed\.gpu\.global\.cas\.b64",
    ("u8", "put", 80): r"st\.relaxed\.gpu\.global\.b8",
}


SEVERAL = {
    ("f32", 4): r"red\.relaxed\.gpu\.global\.add\.v4\.f32",
    ("f16", 8): r"red\.relaxed\.gpu\.global\.add\.noftz\.v4\.f16x2",
    ("bf16", 8): r"red\.relaxed\.gpu\.global\.add\.noftz\.v4\.bf16x2",
}
SUMS = frozenset({"f32", "f16", "bf16"})


@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize(("dtype", "lanes"), SEVERAL)
def test_several_sums_are_one_instruction(dtype: str, lanes: int, capability: int) -> None:
    each = update_kernel(cases.updated("sum", 4096, 64, dtype, 512))
    grid = on_grid(each, sums=describe(capability).neighbour_sums)
    assert grid.lanes == lanes
    of = generator(capability)
    text = of.jit.emit(of.emit(grid, "lw_kernel"), 0, verify=True).decode()
    assert re.search(SEVERAL[dtype, lanes], text), text
    assert float(re.search(r"\.version (\S+)", text)[1]) >= 8.1
    if capability in ptxas.supported():
        ptxas.assemble(text, capability)


def test_only_sums_of_neighbours_are_one_instruction() -> None:
    """Neither other combinations, nor elements that lie apart, nor on cards without it."""
    assert on_grid(update_kernel(cases.updated("max", 4096, 64)), sums=SUMS).lanes == 1
    assert on_grid(update_kernel(cases.updated("sum", 4096, 64, "i32")), sums=SUMS).lanes == 1
    assert on_grid(update_kernel(cases.updated_elements("sum", 64, 32)), sums=SUMS).lanes == 1
    assert on_grid(update_kernel(cases.updated("sum", 4096, 64))).lanes == 1
    assert not describe(80).neighbour_sums


@pytest.mark.parametrize("n", [8, 20, 64])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_several_sums(dtype: str, n: int) -> None:
    """On the simulated card, with its instruction and without, and thread by thread."""
    case = cases.updated("sum", 50, n, dtype)
    grids = [on_grid(each, sums=SUMS) for each in kernels_of(case)]
    assert grids[-1].lanes > 1
    check_grids(case, grids)
    check(case, grids)
    with_it = replace(MODEL, neighbour_sums=SUMS)
    check(case, grids, target=with_it, seed=n)
    code = emit_device(grids[-1], with_it, "lw_kernel")
    assert (".v4.f32" if dtype == "f32" else ".f16x2") in code


def test_several_sums_of_unaligned_rows_are_apart() -> None:
    """Rows of 10 half numbers lie at multiples of 4 bytes."""
    case = cases.updated("sum", 50, 10, "f16")
    grids = [on_grid(each, sums=SUMS) for each in kernels_of(case)]
    assert grids[-1].lanes == 2
    check(case, grids, target=replace(MODEL, neighbour_sums=SUMS))


def update_kernel(case: Case) -> Kernel:
    (kernel,) = (
        each
        for each in kernels_of(case)
        if any(isinstance(stmt, Store) and stmt.combine for stmt in statements(each.body))
    )
    return kernel


@pytest.mark.parametrize(("dtype", "how", "capability"), INSTRUCTIONS)
def test_instructions(dtype: str, how: str, capability: int) -> None:
    text = ptx_of(update_kernel(cases.updated(how, 4096, 64, dtype, 512)), capability)
    assert re.search(INSTRUCTIONS[dtype, how, capability], text), text
    if dtype not in ("f16", "bf16") or how == "sum":
        assert "ld.global.nc." in text  # what is read does not change


ASSEMBLED = [
    *(("rows", how, dtype, 90) for how in OPS for dtype in DTYPES),
    *(
        (name, "sum", dtype, capability)
        for name in MAKE
        for dtype in ("f32", "bf16")
        for capability in (80, 100)
    ),
]


@pytest.mark.parametrize(("name", "how", "dtype", "capability"), ASSEMBLED)
def test_ptxas_takes_it(name: str, how: str, dtype: str, capability: int) -> None:
    if capability not in ptxas.supported():
        pytest.skip(f"this ptxas does not know sm_{capability}")
    found = ptxas.assemble(ptx_of(update_kernel(MAKE[name](how, dtype=dtype)), capability), capability)
    assert found.spills == 0 and 0 < found.registers <= 64


GOLDEN = {
    "index_add": lambda: cases.updated("sum", 4096, 64, "f32", 512),
    "scatter_add of halves": lambda: cases.updated_elements("sum", 512, 64, "f16", 33),
    "scatter_reduce": lambda: cases.updated_numbers("max", 4096, "f32", 100),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    if llvm.llvm_version_info[0] != GOLDEN_LLVM:
        pytest.skip(f"the texts are those of LLVM {GOLDEN_LLVM}")
    text = ptx_of(update_kernel(GOLDEN[name]()), 80)
    # Calls are counted over all modules of the process.
    golden(f"ptx/{name.replace(' ', '_')}", re.sub(r"callseq \d+", "callseq", text))
