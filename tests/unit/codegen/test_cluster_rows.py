"""Rows that clusters of blocks hold: by the interpreter of grids, as code of this CPU, and by the simulated card."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial

import grid_cases as cases
import numpy as np
import ptxas
import pytest
import torch
import torch.nn.functional as F
from grids import CARD, Case, buffers_of, check_grids, kernels_of, memory_of
from loops_build import I, at, buffer, op, pointwise, reduce
from scalar_target import native_on
from simulated import MODEL, ForbiddenError, SimulatingGenerator, run_simulated, simulating_target
from torch import Tensor

import lampwork
from lampwork.codegen.gpu.device import emit_device
from lampwork.codegen.gpu.generator import GpuGenerator
from lampwork.codegen.gpu.grids import grid_key
from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.target import DeviceFunction, Target
from lampwork.errors import CodegenError
from lampwork.loops.fusion.fuse import fuse
from lampwork.loops.fusion.group import Group
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import Axis, Barrier, Buffer, Const, Definition, Expr, Kernel, Load, Loop, Store
from lampwork.loops.reference.evaluate import evaluate_definitions
from lampwork.loops.reference.evaluate_grid import RaceError, run_grid
from lampwork.loops.reference.evaluate_kernel import from_memory
from lampwork.loops.schedule import clusters
from lampwork.loops.schedule import grid as grids
from lampwork.loops.schedule.clusters import HeldRow, cluster_grid, held_row
from lampwork.loops.schedule.grid import grid_variants, on_grid
from lampwork.loops.schedule.schedule import schedule
from lampwork.loops.schedule.split_rows import by_themselves

CLUSTERS = replace(CARD, name="clusters", cluster=16)
H100 = describe(90, 132)


def worked(m: int, n: int) -> Case:
    """Much arithmetic for each element."""
    x, y, total = buffer("x", m, n), buffer("y", m, n), buffer("total", m)
    value = op("tanh", op("sin", at(x, I[0], I[1])))
    definitions = [
        reduce(total, (n,), "sum", op("mul", value, value)),
        pointwise(y, op("div", value, at(total, I[0]))),
    ]
    return cases.of(definitions, "y", x)


def kernel_of(case: Case) -> Kernel:
    """The one kernel of rows, however short, for clusters."""
    (group,), _ = fuse(case.definitions, case.outputs, CARD)
    kernel = of_group(group, "kernel")
    assert kernel is not None
    return kernel


def of_group(group: Group, name: str) -> Kernel | None:
    definitions = by_themselves(group) if group.kind == "rows" else None
    if definitions is None:
        return None
    whole = Group(
        "rows", tuple(definitions), group.rows, group.private & {each.out.name for each in definitions}
    )
    kernel, *others = schedule(whole, name, CARD)
    return None if others or held_row(kernel) is None else replace(kernel, cluster=16)


def grid_of(kernel: Kernel, blocks: int, threads: int) -> Grid:
    """Of so many threads a block."""
    row = held_row(kernel)
    assert row is not None
    return Grid(kernel, blocks * threads, 1, row.lanes, cluster=blocks)


def simulate(case: Case, *grids: Grid, **options) -> None:
    want = evaluate_definitions(case.definitions, case.inputs, sizes=case.sizes)
    for aligned in (True, False):
        memory = memory_of(case, grids)
        for grid in grids:
            run_simulated(grid, memory, case.sizes, aligned=aligned, **options)
        buffers = buffers_of(case.definitions)
        for name in sorted(case.outputs):
            got = from_memory(buffers[name], memory[name], case.sizes)
            np.testing.assert_allclose(
                got, want[name], case.tolerance, case.tolerance, err_msg=f"{name} {aligned}"
            )


RANDOM = range(int(os.environ.get("LAMPWORK_FUZZ", "8")))


def chain(m: int = 3, n: int = 96, dtype: str = "f32") -> Case:
    """A residual that is written as well, its softmax, and the softmax's norm."""
    x, r, h, y = (buffer(name, m, n, dtype=dtype) for name in ("x", "r", "h", "y"))
    top, total, squares = (buffer(name, m) for name in ("top", "total", "squares"))
    powers = op("exp", op("sub", cases.wide(h, I[0], I[1]), at(top, I[0])))
    part = op("div", powers, at(total, I[0]))
    definitions = [
        pointwise(h, cases.cast(op("add", cases.wide(x), cases.wide(r)), dtype)),
        reduce(top, (n,), "max", cases.wide(h, I[0], I[1])),
        reduce(total, (n,), "sum", powers),
        reduce(squares, (n,), "sum", op("mul", part, part)),
        pointwise(y, cases.cast(op("div", part, at(squares, I[0])), dtype)),
    ]
    return cases.of(definitions, "h y", x, r, tolerance=cases.TOLERANCE.get(dtype, 1e-4))


SMALL: dict[str, Callable[..., Case]] = {
    "softmax": cases.softmax,
    "layer_norm": cases.layer_norm,
    "moments": cases.moments,
    "chain": chain,
}


@pytest.mark.parametrize("name", SMALL)
def test_small_rows(name: str) -> None:
    """Rows of whole turns, of a part of a turn, of elements that no vector divides; more rows than clusters."""
    shapes = ((2, 32, 512), (4, 64, 1024 + 40), (8, 32, 333), (16, 32, 37))
    for seed, (blocks, threads, n) in enumerate(shapes):
        case = SMALL[name](3, n, dtype=("f32", "bf16", "f16")[seed % 3])
        simulate(case, grid_of(kernel_of(case), blocks, threads), blocks=1 + seed % 2, seed=seed)


@pytest.mark.parametrize("name", SMALL)
def test_interpreter_and_code_of_this_cpu(name: str) -> None:
    for n, blocks, threads in ((300, 2, 32), (117, 4, 64)):
        check_grids(case := SMALL[name](3, n), [grid_of(kernel_of(case), blocks, threads)])


def test_cross_entropy() -> None:
    """A number of a row at a place from data."""
    case = cases.cross_entropy(5, 500)
    grid = grid_of(kernel_of(case), 4, 32)
    simulate(case, grid, blocks=2)
    check_grids(case, [grid])


def test_as_they_are_launched() -> None:
    """What the schedule makes of long rows: clusters of 16 blocks of 512 threads."""
    for case in (cases.softmax(1, 131080),):
        (kernel,) = kernels_of(case, CLUSTERS)
        grid = on_grid(kernel)
        assert (grid.cluster, grid.block, grid.per_block) == (16, (512, 1), 1)
        simulate(case, grid, blocks=1)


def test_all_kinds_of_states() -> None:
    """Maxima that remember whether there was nan, integers, products, and bool, which is a byte in memory."""
    x, y = buffer("x", 3, 200), buffer("y", 3, 200)
    total, most, least, has = (
        buffer(n, 3, dtype=d) for n, d in zip("tmlh", ("f32", "f32", "i32", "bool"), strict=True)
    )
    own = at(x, I[0], I[1])
    definitions = [
        reduce(most, (200,), "max", own),
        reduce(least, (200,), "min", op("cast", own, dtype="i32")),
        reduce(has, (200,), "all", op("le", own, at(most, I[0]), dtype="bool")),
        reduce(total, (200,), "prod", op("mul", own, own)),
        pointwise(y, op("where", at(has, I[0]), at(x), at(total, I[0]))),
    ]
    case = cases.of(definitions, "y l m", x, tolerance=1e-4)
    case.inputs["x"][1, 7] = np.nan
    grid = grid_of(kernel_of(case), 4, 64)
    simulate(case, grid, blocks=2)
    check_grids(case, [grid])


def test_barriers() -> None:
    """What threads of other blocks wrote is there behind a barrier of all blocks."""
    n, i, j = 200, Index.var("i"), Index.var("j")
    x, y, z = (Buffer(name, "f32", (as_index(3 * n),), (as_index(1),)) for name in "xyz")
    axis = Axis("j", as_index(n))
    write = Loop(axis, "vector", (Store(y, (i * n + j,), Load(x, (i * n + j,))),))
    read = Loop(axis, "vector", (Store(z, (i * n + j,), Load(y, (i * n + (n - 1 - j),))),))
    first, second = ((write, Barrier(), read), (write, read))
    given = {
        "x": np.arange(3.0 * n, dtype=np.float32),
        "y": np.zeros(3 * n, "f4"),
        "z": np.zeros(3 * n, "f4"),
    }
    for body in (first, second):
        kernel = Kernel("kernel", (x, y, z), (), (), (Loop(Axis("i", as_index(3)), "parallel", body),))
        for run in (run_grid, run_simulated):
            got = {name: array.copy() for name, array in given.items()}
            with (
                nullcontext()
                if body is first
                else pytest.raises((RaceError, ForbiddenError), match="race|barrier")
            ):
                run(Grid(kernel, 256, 1, 1, cluster=4), got, blocks=1)
                np.testing.assert_array_equal(got["z"].reshape(3, n), given["x"].reshape(3, n)[:, ::-1])


CALLS = re.compile(r"  call void @llvm\.nvvm\.barrier\.cluster\.\w+\.aligned\(\)\n")


ARRIVE = "call void @llvm.nvvm.barrier.cluster.arrive.aligned()\n"


def without(*numbers: int) -> Callable[[str], str]:
    """The text without what a cluster does together of these numbers: arrive, (wait, arrive, wait, arrive) for each of
    the two reductions, wait."""

    def change(text: str) -> str:
        found = list(CALLS.finditer(text))
        assert len(found) == 20  # in two copies of the code
        for number in sorted((*numbers, *(number + 10 for number in numbers)), reverse=True):
            text = text[: found[number].start()] + text[found[number].end() :]
        return text

    return change


MUTANTS: dict[str, tuple[Callable[[str], str], str]] = {
    "others may not have begun": (without(0, 1, 8, 9), "may not have begun"),
    "results are read before they are sent": (without(2, 3), "nobody has written|a race"),
    "results are sent before others were read": (without(4, 5), "a race"),
    "no wait for what was sent": (without(3), "arrives twice|nobody has written"),
    "a wait for nothing": (without(6), "waits without having arrived"),
    "sent to the own block": (
        lambda text: re.sub(r"(llvm\.nvvm\.mapa\(ptr %\w+, i32) %\w+\)", r"\1 0)", text),
        "nobody has written|a race",
    ),
    "a block that is none": (
        lambda text: re.sub(r"(llvm\.nvvm\.mapa\(ptr %\w+, i32) %\w+\)", r"\1 4)", text),
        "not of the cluster",
    ),
    "some threads arrive": (
        lambda text: text.replace("br label %sent", f"{ARRIVE}  br label %sent"),
        "threads wait for others|waits without|arrives twice",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    change, said = MUTANTS[name]
    case = cases.softmax(1, 512)
    grid = grid_of(kernel_of(case), 4, 64)
    text = emit_device(grid, MODEL, "lw_kernel")
    mutant = change(text)
    assert mutant != text
    for seed in range(2):
        with pytest.raises(ForbiddenError, match=said):
            run_simulated(grid, memory_of(case, [grid]), text=mutant, blocks=1, seed=seed)


# --- programs ---------------------------------------------------------------------------------------------------------


def norms(x: Tensor) -> tuple[Tensor, ...]:
    half = (x + x.abs()).softmax(-1)
    return half, F.rms_norm(x, (x.shape[-1],)), x.var(-1)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(
    "shape, dtype", [((1, 65536), torch.bfloat16), ((2, 33003), torch.float32), ((3, 40000), torch.float16)]
)
def test_functions_of_torch(
    shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By code of this CPU, thread after thread."""
    x, labels = torch.randn(shape, dtype=dtype), torch.randint(0, shape[1], (shape[0],))
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    made: list[Grid] = []

    def noted(kernel: Kernel, rows: int) -> Grid:
        made.append(cluster_grid(kernel, rows))
        return made[-1]

    monkeypatch.setattr(grids, "cluster_grid", noted)
    with native_on(CLUSTERS):
        got = (*lampwork.compile(norms)(x), lampwork.compile(F.cross_entropy)(x, labels))
    assert made
    torch.testing.assert_close(got, (*norms(x), F.cross_entropy(x, labels)), rtol=tolerance, atol=tolerance)


def test_a_function_on_the_simulated_card() -> None:
    x = torch.randn(2, 33000)
    with native_on(replace(simulating_target(), cluster=8)):
        got = lampwork.compile(lambda x: F.layer_norm(x, (33000,)))(x)
    torch.testing.assert_close(got, F.layer_norm(x, (33000,)), rtol=1e-4, atol=1e-5)
    function, launch, _ = SimulatingGenerator.functions[-1]
    assert function.launch.cluster == launch.cluster == 8


def random_case(seed: int) -> Case:
    """Reductions one after the other, each of what those before it gave, and values of points that use them."""
    rng = random.Random(seed)
    m, n, dtype = (
        rng.randint(1, 4),
        rng.choice((31, 40, 128, 250, 513)),
        rng.choice(("f32", "f32", "bf16", "f16")),
    )
    given, column = [buffer(name, m, n, dtype=dtype) for name in "xw"], buffer("c", n)
    values: list[Expr] = [cases.wide(each, I[0], I[1]) for each in given]
    rows: list[Expr] = []
    definitions: list[Definition] = []
    outputs: list[str] = []
    for number in range(rng.randint(2, 5)):
        value = op(rng.choice(("sub", "maximum", "add")), rng.choice(values), rng.choice([*rows, *values]))
        value = op(rng.choice(("tanh", "sigmoid", "abs")), value)
        out = buffer(f"r{number}", m)
        definitions.append(reduce(out, (n,), rng.choice(("sum", "max", "min")), value))
        rows.append(op("mul", at(out, I[0]), Const(1 / n, "f32")))
        if rng.random() < 0.5:
            values.append(op("add", value, rows[-1]))
        if rng.random() < 0.4:
            outputs.append(out.name)
        if rng.random() < 0.4:
            outputs.append(f"z{number}")
            kept = op("mul", values[-1], at(column, I[1])) if rng.random() < 0.5 else values[-1]
            z = buffer(outputs[-1], m, n, dtype=rng.choice(("f32", dtype)))
            definitions.append(pointwise(z, cases.cast(op("add", kept, rows[-1]), z.dtype)))
    y = buffer("y", m, n)
    definitions.append(
        pointwise(y, op("add", op("add", values[0], values[1]), op("add", values[-1], rows[-1])))
    )
    return cases.of(
        definitions,
        " ".join(["y", *outputs]),
        *given,
        column,
        seed=seed,
        tolerance=1e-3 if dtype == "f32" else 2e-2,
    )


@pytest.mark.parametrize("seed", RANDOM)
def test_random_rows_fuzz(seed: int) -> None:
    case = random_case(seed)
    made, held = list[Grid](), 0
    for number, group in enumerate(fuse(case.definitions, case.outputs, CARD)[0]):
        kernel = of_group(group, f"k{number}")
        if kernel is None:
            made += [on_grid(each) for each in schedule(group, f"k{number}", CARD)]
        else:
            made.append(grid_of(kernel, *((2, 32), (4, 64), (8, 32))[seed % 3]))
            held += 1
    assert held, [grid.kernel for grid in made]
    simulate(case, *made, blocks=1 + seed % 2, seed=seed)


# --- which rows -------------------------------------------------------------------------------------------------------


def planned(make: Callable[[], Case]) -> Case:
    """Without inputs, which are large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "inputs_of", lambda seed, *buffers: {})
        return make()


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters for all rows that they can hold, not only where they pay."""
    monkeypatch.setattr(clusters, "pays", lambda kernel: True)


HELD: dict[str, tuple[Callable[[], Case], HeldRow, int, int]] = {
    "softmax": (partial(cases.softmax, 64, 262144), HeldRow(262144, 4, 1), 16, 512),
    "softmax of bf16": (partial(cases.softmax, 64, 262144, "bf16"), HeldRow(262144, 8, 1), 16, 512),
    "layer_norm of bf16, weights of f32": (
        partial(cases.layer_norm, 200, 100000, "bf16"),
        HeldRow(100000, 4, 1),
        8,
        512,
    ),
    "chain, whose sum is held": (partial(chain, 64, 262144), HeldRow(262144, 4, 1), 16, 512),
    "much arithmetic": (partial(worked, 64, 65536), HeldRow(65536, 4, 3), 16, 512),
    "moments": (partial(cases.moments, 3, 65536), HeldRow(65536, 4, 1), 8, 512),
    "few rows that a block could hold": (partial(cases.softmax, 10, 32768), HeldRow(32768, 4, 1), 8, 256),
    "elements that no vector divides": (partial(cases.softmax, 1, 99999), HeldRow(99999, 1, 1), 8, 512),
    "cross entropy": (partial(cases.cross_entropy, 64, 262144), HeldRow(262144, 4, 1), 16, 512),
}


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("name", HELD)
def test_rows_that_are_held(name: str) -> None:
    make, row, blocks, threads = HELD[name]
    (kernel,) = kernels_of(planned(make), H100)
    grid = on_grid(kernel)
    assert (held_row(kernel), grid.cluster, grid.block) == (row, blocks, (threads, 1))


OTHERS: dict[str, tuple[Callable[[], Case], Target]] = {
    "a card without clusters": (partial(cases.softmax, 64, 262144), describe(80, 108)),
    "a part of a card": (partial(cases.softmax, 64, 262144), describe(90, 14)),
    "more than 8 blocks can hold": (partial(cases.softmax, 64, 262148), H100),
    "arithmetic that takes registers": (partial(worked, 64, 262144), H100),
    "doubles": (partial(cases.softmax, 64, 100000, "f64"), H100),
    "rows enough, which a block holds": (partial(cases.softmax, 128, 32768), H100),
    "one reading anyway": (partial(cases.rows, "sum", 64, 262144), H100),
    "open sizes": (partial(cases.normed_rows, 64, 100000), H100),
    "positions": (partial(cases.rows, "argmax", 64, 262144), H100),
    "another order": (partial(cases.mirrored, 64, 65536), H100),
    "half types, which are read again as fast": (partial(cases.softmax, 64, 262144, "bf16"), H100),
    "moments, of which nothing is read again": (partial(cases.moments, 64, 262144), H100),
    "losses, of which nothing is read again": (partial(cases.cross_entropy, 64, 262144), H100),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_rows(name: str) -> None:
    """They are as on cards without clusters."""
    make, target = OTHERS[name]
    case = planned(make)
    kernels = kernels_of(case, target)
    assert kernels and all(kernel.cluster == 1 for kernel in kernels)
    assert all(on_grid(kernel).cluster == 1 for kernel in kernels)
    assert kernels == kernels_of(case, replace(target, cluster=1))


def test_variants() -> None:
    """Other clusters for a measurement, and none that cannot hold the row."""
    (kernel,) = kernels_of(planned(partial(cases.softmax, 64, 65536)), H100)
    names = grid_variants(kernel)
    assert "threads 4096, groups 1, lanes 4, clusters of 4" in names and len(names) > 4
    for name in names:
        grid = on_grid(replace(kernel, variant=name))
        assert name.endswith(f", clusters of {grid.cluster}") and grid.threads == int(name.split()[1][:-1])
        assert grid.cluster * grid.block[0] == grid.threads and grid.lanes == 4
    for name in (
        "threads 1024, groups 1, lanes 4",
        "threads 512, groups 1, lanes 4, clusters of 2",
        "threads 32768, groups 1, lanes 4, clusters of 32",
        "threads 8192, groups 1, lanes 2, clusters of 8",
        "threads 16384, groups 1, lanes 4, clusters of 8",
    ):
        with pytest.raises(CodegenError, match="there is no grid"):
            on_grid(replace(kernel, variant=name))
    with pytest.raises(CodegenError, match="there is no grid"):
        on_grid(replace(kernel, variant=names[0], cluster=1))


def test_variants_are_right() -> None:
    case = cases.softmax(2, 16384)
    (kernel,) = kernels_of(case, CLUSTERS)
    for name in grid_variants(kernel)[::4]:
        simulate(case, on_grid(replace(kernel, variant=name)), blocks=1)


def test_what_is_remembered_of_kernels_tells_clusters() -> None:
    (kernel,) = kernels_of(planned(partial(cases.softmax, 64, 65536)), H100)
    assert grid_key(kernel, {}) != grid_key(replace(kernel, cluster=1), {})


# --- code -------------------------------------------------------------------------------------------------------------


@cache
def generator(capability: int) -> GpuGenerator:
    return GpuGenerator(describe(capability, 132))


# Case, capability, and wide loads of each thread.
PTX: dict[str, tuple[Callable[[], Case], int, int]] = {
    "softmax": (partial(cases.softmax, 64, 262144), 90, 8),
    "softmax of bf16": (partial(cases.softmax, 64, 262144, "bf16"), 90, 4),
    "softmax of f16, a tail": (partial(cases.softmax, 64, 200008, "f16"), 100, 0),
    "softmax of single elements": (partial(cases.softmax, 64, 262143), 100, 0),
    "layer_norm, weights of f32": (partial(cases.layer_norm, 64, 262144, "bf16"), 90, 24),
    "layer_norm": (partial(cases.layer_norm, 64, 262144), 100, 0),
    "chain": (partial(chain, 64, 262144), 90, 16),
    "moments": (partial(cases.moments, 64, 262144), 90, 8),
    "cross entropy": (partial(cases.cross_entropy, 64, 262144), 90, 8),
}


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("name", PTX)
def test_ptxas_takes_it(name: str) -> None:
    """Registers hold the row: nothing is spilled, and what is read is read once."""
    make, capability, wide = PTX[name]
    (kernel,) = kernels_of(planned(make), H100)
    of = generator(capability)
    text = of.jit.emit(of.emit(on_grid(kernel), "lw_kernel"), 0, verify=True).decode()
    assert ".explicitcluster" in text and "mapa" in text
    if wide:
        assert len(re.findall(r"ld\.global(?:\.nc)?\.v[24]\.b32", text)) == wide
    if capability not in ptxas.supported():
        pytest.skip(f"this ptxas does not know sm_{capability}")
    found = ptxas.assemble(text, capability)
    assert found.spills == 0 and found.registers <= 64, found


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.usefixtures("forced")
def test_two_blocks_of_a_cluster_at_a_multiprocessor(dtype: str) -> None:
    """One may read while the other writes: 512 threads of 64 registers each, by a variant or as MODEL says."""
    (kernel,) = kernels_of(planned(partial(cases.softmax, 64, 262144, dtype)), H100)
    name = f"threads 8192, groups 1, lanes {4 if dtype == 'f32' else 8}, clusters of 16"
    grid = on_grid(kernel)
    assert replace(on_grid(replace(kernel, variant=name)), kernel=grid.kernel) == grid
    assert grid.block == (512, 1)
    of = generator(90)
    text = of.jit.emit(of.emit(grid, "lw_kernel"), 0, verify=True).decode()
    assert ".minnctapersm 2" in text
    if 90 not in ptxas.supported():
        pytest.skip("this ptxas does not know sm_90")
    found = ptxas.assemble(text, 90)
    assert found.spills == 0 and found.registers <= 64, found


def test_a_launch_is_of_clusters() -> None:
    (kernel,) = kernels_of(planned(partial(cases.softmax, 64, 65536)), H100)
    functions, _ = generator(90).compile([kernel], ())
    function = functions[kernel.name]
    assert isinstance(function, DeviceFunction)
    assert (function.cluster, function.block, function.per_block) == (4, (512, 1), 1)
