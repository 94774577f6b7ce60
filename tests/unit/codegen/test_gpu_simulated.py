"""The code of cards, run by a simulated one: against the definitions, and the interpreter of kernels."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import grid_cases as cases
import numpy as np
import pytest
import torch
from grids import CARD, Case, buffers_of, grids_of, memory_of
from random_bodies import RandomBody
from random_rows import random_rows
from scalar_target import native_on
from simulated import (
    MODEL,
    AssertionOfKernel,
    ForbiddenError,
    SimulatingGenerator,
    run_simulated,
    simulating_target,
)
from torch import nn

import lampwork
from lampwork.codegen.gpu.device import emit_device
from lampwork.loops.ir.grid import WARP, Grid, lanes_of, parallel_loop
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import (
    Axis,
    Buffer,
    Expr,
    IndexValue,
    Kernel,
    Load,
    Local,
    Loop,
    Op,
    ReduceLoop,
    Reducer,
    ScanLoop,
    Stmt,
    Store,
)
from lampwork.loops.reference.evaluate import NUMPY_DTYPES, evaluate_definitions
from lampwork.loops.reference.evaluate_kernel import from_memory, run_kernel
from lampwork.loops.schedule.grid import SMALL_BLOCK, on_grid


def of_threads(grid: Grid, threads: int) -> Grid:
    """The same kernel with groups of so many threads."""
    groups = max(1, SMALL_BLOCK // threads) if threads <= WARP else 1
    return replace(grid, threads=threads, groups=groups)


def check(case: Case, grids: Sequence[Grid] | None = None, **options) -> None:
    """The grids on the simulated card, with aligned buffers and with others, give what the definitions say."""
    grids = grids_of(case) if grids is None else grids
    want = evaluate_definitions(case.definitions, case.inputs, sizes=case.sizes)
    for aligned in (True, False):
        memory = memory_of(case, grids)
        for grid in grids:
            assert grid.shared_bytes <= CARD.scratch_bytes
            run_simulated(grid, memory, case.sizes, aligned=aligned, **options)
        buffers = buffers_of(case.definitions)
        for name in sorted(case.outputs):
            got = from_memory(buffers[name], memory[name], case.sizes)
            close = {"rtol": case.tolerance, "atol": case.tolerance, "err_msg": f"{name}, {aligned}, {grids}"}
            np.testing.assert_allclose(got, want[name], **close)


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_families(family: str) -> None:
    for seed in range(2):
        check(cases.FAMILIES[family](), seed=seed, blocks=1 + seed)


@pytest.mark.parametrize("family", cases.CUT)
def test_work_that_is_cut(family: str) -> None:
    check(cases.CUT[family](), seed=1, blocks=3)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "ndtr"])
def test_functions_of_half_types(name: str, dtype: str) -> None:
    """Shorter formulas are as good where the result is rounded to a half type: of every number of that type."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float16
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(kind)
    case = cases.half_of(name, dtype, numbers.numel())
    (grid,) = grids_of(case)
    memory = memory_of(case, [grid])
    memory["x"][...] = numbers.float().numpy()
    run_simulated(grid, memory, case.sizes)
    got = torch.from_numpy(np.asarray(memory["y"], np.float64))
    exact = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "ndtr": torch.special.ndtr}[name](numbers.double())
    ulp = exact.abs().clamp_min(2.0**-126 if dtype == "bf16" else 2.0**-14).log2().floor().exp2()
    ulp *= 2.0**-7 if dtype == "bf16" else 2.0**-10
    error = ((got - exact) / ulp).abs()
    assert torch.equal(got.isnan(), exact.isnan())
    # Where e ** -x is infinite the sigmoid is 0, as eager's; the distribution function is exact to 2^-9 in its tail.
    near = {"sigmoid": 2.0**-127.9, "tanh": 0.0, "ndtr": 2.0**-10}[name]
    error = error[~exact.isnan() & (exact.abs() >= near)]
    worst = error.max().item()
    assert worst <= 0.52, worst


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "16"))))
def test_random_rows_fuzz(seed: int) -> None:
    check(random_rows(seed), seed=seed, blocks=1 + seed % 3)


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "24"))))
def test_random_bodies_fuzz(seed: int) -> None:
    kernel = RandomBody(seed).build()
    rng = np.random.default_rng(seed)
    given = {
        each.name: rng.integers(-9, 9, each.shape[0].as_int()).astype(np.int32) for each in kernel.params
    }
    want, got = ({name: array.copy() for name, array in given.items()} for _ in range(2))
    run_kernel(kernel, want)
    grid = on_grid(kernel)
    threads = (grid.threads, 2, 8, 32, 64, 128)[seed % 6]
    if not grid.is_flat:
        grid = of_threads(grid, threads)
    run_simulated(grid, got, aligned=seed % 4 > 0, blocks=1 + seed % 2, seed=seed)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=str(kernel))


# --- reductions and scans of every dtype, in groups of every size -----------------------------------------------------

i, j = Index.var("i"), Index.var("j")
THREADS = (2, 8, 32, 64, 1024)
NUMERIC = tuple(dtype for dtype in cases.DTYPES if dtype != "bool")
OPS = ("sum", "prod", "max", "min", "argmax", "argmin")


def flat_buffer(name: str, dtype: str, elements: int | Index) -> Buffer:
    return Buffer(name, dtype, (as_index(elements),), (as_index(1),))


def rows_of(
    rows: int, params: Sequence[Buffer], body: Sequence[Stmt], scratch: Sequence[Buffer] = ()
) -> Kernel:
    loop = Loop(Axis("i", as_index(rows)), "parallel", tuple(body))
    return Kernel("kernel", tuple(params), (), tuple(scratch), (loop,))


def widened(load: Load) -> Expr:
    """A value as it is computed with: half types as float32."""
    return Op("cast", (load,), "f32") if load.dtype in ("f16", "bf16") else load


def numbers(dtype: str, elements: int, seed: int = 0) -> np.ndarray:
    """Numbers of which no sum or product is rounded: ones, some twos and signs."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(elements) < 0.1
    found = np.where(rng.random(elements) < 4 / elements, 2, 1)
    if dtype != "u8":
        found *= rng.choice((-1, 1), elements)
    return found.astype(NUMPY_DTYPES[dtype])


def against_interpreter(kernel: Kernel, grid: Grid, given: dict[str, np.ndarray], **options) -> None:
    want = {name: array.copy() for name, array in given.items()}
    run_kernel(kernel, want)
    for aligned in (True, False):
        got = {name: array.copy() for name, array in given.items()}
        run_simulated(grid, got, aligned=aligned, **options)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array, err_msg=f"{name} {aligned}")


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_reductions(dtype: str, threads: int) -> None:
    """All operators at a time: their states are shuffled side by side, and lie in slots side by side."""
    rows, n = 3, 2 * threads + 5
    x = flat_buffer("x", dtype, rows * n)
    value, given = widened(Load(x, (i * n + j,))), {"x": numbers(dtype, rows * n)}
    dtype = value.dtype
    ops = ("any", "all", "max", "min", "argmax", "argmin") if dtype == "bool" else OPS
    whole = [op for op in ops if not op.startswith("arg")]
    loops, stores, extra = [], [], []
    for group in (whole, *[[op] for op in ops if op.startswith("arg")]):
        reducers = tuple(Reducer(f"r_{op}", op, value, dtype) for op in group)
        placed = IndexValue(j, "i64") if group[0].startswith("arg") else None
        loops.append(ReduceLoop(Axis("j", as_index(n)), "vector", (), reducers, placed))
        for op in group:
            kind = "i64" if op.startswith("arg") else dtype
            extra.append(flat_buffer(f"y_{op}", kind, rows))
            stores.append(Store(extra[-1], (i,), Local(f"r_{op}", kind)))
    kernel = rows_of(rows, [x, *extra], [*loops, *stores])
    given |= {each.name: np.zeros(rows, NUMPY_DTYPES[each.dtype]) for each in extra}
    against_interpreter(kernel, of_threads(on_grid(kernel), threads), given, seed=threads)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", NUMERIC)
def test_scans(dtype: str, threads: int) -> None:
    rows, n = 2, 2 * threads + 3
    x, y = (flat_buffer(name, dtype, rows * n) for name in "xy")
    for op in ("sum", "max"):
        value = widened(Load(x, (i * n + j,)))
        store = Store(y, (i * n + j,), Local("a", value.dtype))
        scan = ScanLoop(Axis("j", as_index(n)), (), "a", op, value, value.dtype, (store,))
        kernel = rows_of(rows, [x, y], [scan])
        given = {"x": numbers(dtype, rows * n), "y": numbers(dtype, rows * n, 1)}
        against_interpreter(kernel, of_threads(on_grid(kernel), threads), given, seed=threads)


# --- extents, values, copies of the code ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("n", [0, 1, 3, 1003])
def test_flat(n: int, dtype: str) -> None:
    """One element at a time and several, in more turns than the grid has threads."""
    case = cases.flat(n, dtype)
    for grid in grids_of(case):
        loop = parallel_loop(grid.kernel)
        for lanes in {1, 1 if loop is None else lanes_of(loop)}:
            check(case, [replace(grid, groups=64, lanes=lanes)], blocks=2)


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (1, 70), (130, 2), (7, 33)])
def test_rows_of_few_elements_and_few_rows(shape: tuple[int, int]) -> None:
    """Fewer rows than a block has groups, and more than all blocks have."""
    for make in (cases.softmax, cases.layer_norm, cases.scan):
        case = make(m=shape[0], n=shape[1])
        for threads in (2, 8, 32, 64):
            grids = [grid if grid.is_flat else of_threads(grid, threads) for grid in grids_of(case)]
            check(case, grids, blocks=2, seed=threads)


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_open_sizes(rows: int) -> None:
    check(cases.normed_rows(rows, 33), blocks=2)
    check(cases.normed_rows(rows, 1), blocks=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cases.total(70_000),
        lambda: cases.columns("max", 6000, 8),
        lambda: cases.broadcast(2, 16_384),
        lambda: cases.softmax(2, 4096, "f16"),
        lambda: cases.rows("argmin", 2, 5000),
        lambda: cases.softmax_of_columns(9, 300),
        lambda: cases.softmax_of_columns(1500, 3),
    ],
    ids=["all", "columns", "spread", "kept", "argmin", "columns in blocks", "long columns"],
)
def test_kernels_of_many_elements(make) -> None:
    """Reductions in two stages and three, rows in pieces, several turns at a time, a block's threads for a row."""
    check(make(), blocks=8)


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "u8", "bool"])
def test_tiles(dtype: str) -> None:
    case = cases.transpose(64, 64, dtype)
    assert any(grid.kernel.scratch for grid in grids_of(case))
    check(case, blocks=3)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_random_numbers(width: int) -> None:
    for blocks in (1, 3):
        check(cases.dropout(width=width), blocks=blocks)


@pytest.mark.parametrize("make", [cases.softmax, cases.layer_norm, cases.rows, cases.transpose, cases.flat])
def test_numbers_that_are_none(make) -> None:
    """NaN, infinities and -0.0 pass as numpy has them, signs included."""
    case = make()
    x = case.inputs["x"]
    x.flat[::7], x.flat[3::31], x.flat[5::29] = -0.0, np.inf, np.nan
    with np.errstate(all="ignore"):
        check(case)
    if make is cases.transpose:
        (grid,) = grids_of(case)
        memory = memory_of(case, [grid])
        run_simulated(grid, memory)
        np.testing.assert_array_equal(memory["y"].view(np.int32).reshape(x.T.shape), x.T.view(np.int32))


@pytest.mark.parametrize("how", ["max", "min", "argmax", "argmin", "sum"])
@pytest.mark.parametrize("n", [40, 2000])
def test_reductions_of_nan(how: str, n: int) -> None:
    case = cases.rows(how, 4, n)
    x = case.inputs["x"]
    x[1, n // 2 :: 9], x[2, 3], x[3, :] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        check(case)


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_scratch_that_is_kept_and_that_is_not(dtype: str) -> None:
    """A thread reads back what it wrote from registers, and what others wrote from shared memory."""
    rows, threads = 3, 32
    for n, place in ((threads * 32, j), (threads * 32, threads * 32 - 1 - j), (threads * 32 + 1, j)):
        x, y = (flat_buffer(name, dtype, rows * n) for name in "xy")
        s = flat_buffer("s", dtype, n)
        body = [
            Loop(Axis("j", as_index(n)), "vector", (Store(s, (j,), Load(x, (i * n + j,))),)),
            Loop(Axis("j", as_index(n)), "vector", (Store(y, (i * n + j,), Load(s, (place,))),)),
        ]
        grid = of_threads(on_grid(rows_of(rows, [x, y], body, [s])), threads)
        given = {"x": numbers(dtype, rows * n), "y": numbers(dtype, rows * n, 1)}
        against_interpreter(grid.kernel, grid, given, blocks=1)


def test_scratch_of_iterations_that_share_nothing() -> None:
    """Serial loops alone: each iteration has the scratch of a block for itself."""
    x, y, s = flat_buffer("x", "f32", 60), flat_buffer("y", "f32", 60), flat_buffer("s", "f32", 4)
    body = [
        Loop(Axis("j", as_index(4)), "serial", (Store(s, (j,), Load(x, (i * 4 + j,))),)),
        Loop(Axis("j", as_index(4)), "serial", (Store(y, (i * 4 + j,), Load(s, (3 - j,))),)),
    ]
    kernel = rows_of(15, [x, y], body, [s])
    given = {"x": numbers("f32", 60), "y": numbers("f32", 60, 1)}
    against_interpreter(kernel, on_grid(kernel), given, blocks=4)


# --- what must not pass -----------------------------------------------------------------------------------------------


def test_an_index_out_of_range_is_asserted() -> None:
    case = cases.gather()
    case.inputs["ids"].flat[5] = 5
    (grid,) = grids_of(case)
    with pytest.raises(AssertionOfKernel, match="an index is out of range"):
        run_simulated(grid, memory_of(case, [grid]))


@cache
def text_of_total() -> tuple[Case, Grid, str]:
    """The sum of a row across warps."""
    case = cases.rows("sum", 2, 3000)
    (grid,) = grids_of(case)
    assert grid.threads > WARP
    return case, grid, emit_device(grid, MODEL, "lw_kernel")


BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n"


def only(numbers: Sequence[int]) -> Callable[[str], str]:
    """The text with the barriers of these numbers alone: both copies of the code have two."""

    def change(text: str) -> str:
        parts = text.split(BARRIER)
        return "".join(f"{part}{BARRIER if n in numbers else ''}" for n, part in enumerate(parts))

    return change


def put(pattern: str, by: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, by, text)


MUTANTS = {
    "no barrier before slots are read": (only((1, 3)), "nobody has written|race"),
    "no barrier before slots are written again": (only((0, 2)), "race with a thread that reads"),
    "shuffles in parts of eight lanes": (put("i32 31\\)", "i32 6175)"), "wrong"),
    "shuffles of the first lanes": (put("i32 31\\)", "i32 3)"), "wrong"),
    "shuffles to the wrong lane": (put(", i32 16, i32 31", ", i32 8, i32 31"), "wrong"),
    "members that are others": (put("bfly.i32\\(i32 -1,", "bfly.i32(i32 65535,"), "none of the members"),
    "vectors of buffers that are not aligned": (put("(and i64 %v3), 15", r"\1, 3"), "not aligned"),
    "a barrier of some threads": (put("(leader\\d+:\n)", rf"\1{BARRIER}"), "threads wait for others"),
    "a place behind a buffer": (
        put("icmp slt i64 (%\\w+), 3000", r"icmp slt i64 \1, 3004"),
        "out of reach|wrong",
    ),
    "a result of all threads": (
        put("icmp eq i64 %v10, 0", "icmp sge i64 %v10, 0"),
        "race with a thread that writes",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    """What is wrong with the code of a sum across warps is seen, by its result or before."""
    change, said = MUTANTS[name]
    case, grid, text = text_of_total()
    mutant = change(text)
    assert mutant != text
    found = "right"
    for seed in range(2):
        memory = memory_of(case, [grid])
        try:
            run_simulated(
                grid, memory, text=mutant, aligned=not name.startswith("vectors"), blocks=1, seed=seed
            )
            if not np.allclose(memory["y"], case.inputs["x"].sum(1), rtol=1e-3, atol=1e-3):
                found = "wrong"
        except ForbiddenError as error:
            found = str(error)
    assert re.search(said, found), found


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_training_a_model() -> None:
    """Forward, backward and steps along the gradients, each kernel by the threads of a card."""
    torch.manual_seed(0)
    layers = [nn.Linear(24, 40), nn.LayerNorm(40), nn.GELU(), nn.Linear(40, 7)]
    models = nn.Sequential(*layers), nn.Sequential(*copy.deepcopy(layers))
    x, labels = torch.randn(33, 24), torch.randint(7, (33,))
    before = len(SimulatingGenerator.functions)
    found: list[list[torch.Tensor]] = []

    def loss(model: nn.Module) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), labels)

    with native_on(simulating_target()):
        for model, call in zip(models, (loss, lampwork.compile(loss)), strict=True):
            weights = list(model.parameters())
            for _ in range(3):
                value = call(model)
                gradients = torch.autograd.grad(value, weights)
                with torch.no_grad():
                    for weight, gradient in zip(weights, gradients, strict=True):
                        weight -= 0.1 * gradient
            found.append([value, *weights])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert len(SimulatingGenerator.functions) > before
