"""Kernels on a grid, thread by thread and as code of this CPU, against their definitions."""

from __future__ import annotations

import grid_cases as cases
import numpy as np
import pytest
from grids import check_grids, grids_of


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_families(family):
    check_grids(cases.FAMILIES[family]())


@pytest.mark.parametrize("n", [1, 2, 3, 17, 256, 1003])
@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_flat(n, dtype):
    check_grids(cases.flat(n, dtype))


@pytest.mark.parametrize("dtype", cases.FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 33), (5, 64), (2, 129)])
def test_rows(shape, dtype):
    """Groups of 2 threads to several warps."""
    check_grids(cases.softmax(*shape, dtype))
    check_grids(cases.layer_norm(*shape, "f32" if dtype == "f64" else dtype))


def test_rows_of_many_warps():
    check_grids(cases.softmax(1, 1025))


@pytest.mark.parametrize("how", ["sum", "prod", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32"])
def test_reductions_of_rows(how, dtype):
    for n in (1, 7, 130):
        check_grids(cases.rows(how, 3, n, dtype))


@pytest.mark.parametrize("how", ["any", "all"])
def test_reductions_of_truth(how):
    for n in (1, 40, 300):
        check_grids(cases.rows(how, 3, n, "bool"))


@pytest.mark.parametrize("how", ["sum", "max", "argmax", "argmin"])
def test_other_reductions(how):
    check_grids(cases.columns(how))
    check_grids(cases.columns(how, 300, 3))
    check_grids(cases.total(how=how))
    check_grids(cases.total(1, how))


@pytest.mark.parametrize("how", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("n", [3, 50, 300])
def test_special_numbers(how, n):
    """NaN wins, the first of equals too, and infinities are values."""
    for special in (np.nan, np.inf, -np.inf):
        case = cases.rows(how, 4, n)
        x = case.inputs["x"]
        x[0, [n // 2, n - 1]] = special
        x[1] = special
        x[2] = 1.0
        x[3, ::2] = special
        check_grids(case)


@pytest.mark.parametrize("how", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("along", [0, 1])
def test_scans(how, along):
    check_grids(cases.scan(how, along))
    check_grids(cases.scan(how, along, 1, 1))


@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 40), (9, 3), (3, 700)])
def test_open_sizes(rows, columns):
    case = cases.normed_rows(rows, columns)
    check_grids(case)
    check_grids(case, grids_of(case, {"m": 4, "n": 64}))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("blocks", [1, 3, 20])
def test_any_number_of_blocks(blocks, wide):
    for make in (cases.softmax, cases.mirrored, cases.flat):
        check_grids(make(), blocks=blocks, wide=wide, seed=blocks)
