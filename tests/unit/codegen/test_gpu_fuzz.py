"""Random kernels on a grid: code of this CPU and the threads of the interpreter against the interpreter of kernels."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from codegen_support import NUMPY
from grids import run_code
from test_codegen_fuzz import Program

from lampwork.loops.reference.evaluate_grid import run_grid
from lampwork.loops.reference.evaluate_kernel import run_kernel
from lampwork.loops.schedule.grid import on_grid


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "8"))))
def test_random_kernels_on_a_grid_fuzz(seed: int) -> None:
    program = Program(seed)
    kernel, outs = program.build()
    rng = np.random.default_rng(seed)
    given: dict[str, np.ndarray] = {}
    for buffer in program.inputs:
        numbers = rng.integers(0, 2 if buffer.dtype == "bool" else 9, 640)
        given[buffer.name] = (numbers - 4 * (buffer.dtype[0] == "f")).astype(NUMPY[buffer.dtype])
    given |= {out.name: np.zeros(640, NUMPY[out.dtype]) for out in outs}
    want, by_threads, by_code = ({name: array.copy() for name, array in given.items()} for _ in range(3))
    run_kernel(kernel, want)
    grid = replace(on_grid(kernel), threads=8)  # the more threads, the slower is the interpreter
    run_grid(grid, by_threads, seed=seed, wide=seed % 2 > 0)
    assert run_code(kernel, by_code, aligned=seed % 2 > 0) == 0
    for run in (by_threads, by_code):
        for out in outs:
            got, expected = (side[out.name].astype(np.float64) for side in (run, want))
            np.testing.assert_allclose(got, expected, rtol=3e-5, atol=3e-5, err_msg=f"{seed}: {kernel}")
