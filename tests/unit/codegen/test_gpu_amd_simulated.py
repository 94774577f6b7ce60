"""The code for AMD cards, run by the simulated card: in waves of 64 and of 32, against the definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import grid_cases as cases
import numpy as np
import pytest
from grids import Case, buffers_of, grids_of, memory_of
from random_rows import random_rows
from simulated import AssertionOfKernel, ForbiddenError, run_simulated
from simulated_amd import for_simulated_card

from lampwork.codegen.gpu.amd import describe_amd
from lampwork.loops.ir.grid import WARP, Grid
from lampwork.loops.reference.evaluate import evaluate_definitions
from lampwork.loops.reference.evaluate_kernel import from_memory
from lampwork.loops.schedule.grid import SMALL_BLOCK

TARGETS = {wave: describe_amd(name) for wave, name in ((64, "gfx942"), (32, "gfx1201"))}


def of_threads(grid: Grid, threads: int) -> Grid:
    """The same kernel with groups of so many threads."""
    if grid.is_flat:
        return grid
    return replace(grid, threads=threads, groups=max(1, SMALL_BLOCK // threads) if threads <= WARP else 1)


def check(case: Case, wave: int, grids: Sequence[Grid] | None = None, **options) -> None:
    grids = grids_of(case) if grids is None else grids
    memory = memory_of(case, grids)
    for grid in grids:
        text = for_simulated_card(grid, TARGETS[wave])
        run_simulated(grid, memory, case.sizes, text=text, **options)
    want = evaluate_definitions(case.definitions, case.inputs, sizes=case.sizes)
    buffers = buffers_of(case.definitions)
    for name in sorted(case.outputs):
        got = from_memory(buffers[name], memory[name], case.sizes)
        np.testing.assert_allclose(
            got, want[name], rtol=case.tolerance, atol=case.tolerance, err_msg=f"{name}, {grids}"
        )


@pytest.mark.parametrize("wave", TARGETS)
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_families(family: str, wave: int) -> None:
    check(cases.FAMILIES[family](), wave)
    check(cases.FAMILIES[family](), wave, aligned=False, blocks=1, seed=1)


@pytest.mark.parametrize("threads", [2, 8, 16, 32, 64, 256])
@pytest.mark.parametrize("family", ["softmax", "layer_norm", "argmax", "scan", "mirrored"])
def test_groups_of_any_threads_in_waves_of_64(family: str, threads: int) -> None:
    """Also in a part of a wave's half, whose other groups may be done earlier."""
    case = cases.FAMILIES[family]()
    check(case, 64, [of_threads(grid, threads) for grid in grids_of(case)], blocks=1)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_values_of_other_sizes(dtype: str) -> None:
    check(cases.softmax(dtype=dtype), 64)
    check(cases.rows("max", dtype=dtype), 64)


@pytest.mark.parametrize("seed", range(6))
def test_random_rows(seed: int) -> None:
    check(random_rows(seed), 64 if seed % 2 else 32, seed=seed, blocks=1 + seed % 3)


def test_barriers_are_needed() -> None:
    """Without those of a wave the simulated card sees a race: what it would say of a missing one."""
    case = cases.mirrored()
    (grid,) = grids_of(case)
    grid = of_threads(grid, 32)
    text = for_simulated_card(grid, TARGETS[64])
    assert "bar.warp.sync" in text
    lines = [line for line in text.splitlines() if "bar.warp.sync" not in line]
    with pytest.raises(ForbiddenError, match="race"):
        run_simulated(grid, memory_of(case, [grid]), text="\n".join(lines))


def test_an_index_out_of_range_ends_the_kernel() -> None:
    case = cases.gather()
    (grid,) = grids_of(case)
    memory = memory_of(case, [grid])
    memory["ids"][3] = 99
    with pytest.raises(AssertionOfKernel):
        run_simulated(grid, memory, text=for_simulated_card(grid, TARGETS[64]))
