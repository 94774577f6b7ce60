"""The code of cards, run by a simulated one: against the definitions, and the interpreter of kernels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import grid_cases as cases
import numpy as np
import pytest
from grids import CARD, Case, buffers_of, grids_of, memory_of
from random_bodies import RandomBody
from random_rows import random_rows
from simulated import run_simulated

from lampwork.loops.ir.grid import WARP, Grid
from lampwork.loops.reference.evaluate import evaluate_definitions
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
