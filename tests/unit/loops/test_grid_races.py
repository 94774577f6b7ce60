"""Barriers stand where they are needed: without one the interpreter of grids reports a race, or threads that part."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import grid_cases as cases
import numpy as np
import pytest
from grids import barriers, check_grids, grids_of, memory_of, run_code, without_barrier
from random_bodies import RandomBody

from lampwork.errors import InvalidLoopsError
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.index import Index, as_index
from lampwork.loops.ir.nodes import (
    Axis,
    Barrier,
    Buffer,
    Const,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Op,
    ReduceLoop,
    Reducer,
    ScanLoop,
    Store,
)
from lampwork.loops.reference import evaluate_grid
from lampwork.loops.reference.evaluate_grid import RaceError, run_grid
from lampwork.loops.reference.evaluate_kernel import run_kernel
from lampwork.loops.schedule.grid import on_grid

ROWS, N = 3, 40
i, j, k = Index.var("i"), Index.var("j"), Index.var("k")
BACK = N - 1 - j
X, Y, Z = (Buffer(name, "i32", (as_index(ROWS * N),), (as_index(1),)) for name in "xyz")
S = Buffer("s", "i32", (as_index(N),), (as_index(1),))


def at(buffer, element):
    return Load(buffer, (as_index(element) if buffer is S else i * N + element,))


def put(buffer, element, value):
    return Store(buffer, at(buffer, element).index, value)


def shared(*body):
    return Loop(Axis("j", as_index(N)), "vector", body)


def serial(*body):
    return Loop(Axis("k", as_index(3)), "serial", body)


def add(x, y):
    return Op("add", (x, y), "i32")


def through_scratch():
    return [shared(put(S, j, at(X, j))), shared(put(Y, j, at(S, BACK)))]


def back_and_forth():
    return [serial(shared(put(S, j, at(Y, BACK))), shared(put(Y, j, add(at(S, BACK), at(X, j)))))]


def by_the_first_thread():
    last = Let("last", at(X, N - 1))
    return [last, put(S, 0, Local("last", "i32")), shared(put(Y, j, add(at(S, 0), at(X, j))))]


def read_by_all():
    """What every thread has read, the first one changes."""
    read = Let("first", at(Y, 0))
    return [read, put(Y, 0, Const(1, "i32")), shared(put(Z, j, Local("first", "i32")))]


def combined():
    """What a serial reduction combines, its turns write."""
    sums = Reducer("sum", "sum", at(Z, k), "i32")
    loop = ReduceLoop(
        Axis("k", as_index(3)), "serial", (shared(put(Z, j, add(at(X, j), at(Z, j)))),), (sums,)
    )
    return [loop, put(Z, 2, Local("sum", "i32"))]


def scanned():
    scan = ScanLoop(
        Axis("j", as_index(N)), (), "sum", "sum", at(X, j), "i32", (put(S, j, Local("sum", "i32")),)
    )
    return [scan, shared(put(Y, j, at(S, BACK)))]


# The barrier before a loop is one too many where each of its turns begins with one.
SPARE = {
    through_scratch: 0,
    back_and_forth: 1,
    by_the_first_thread: 0,
    read_by_all: 0,
    combined: 0,
    scanned: 0,
}


def grid_of(body) -> Grid:
    whole = Loop(Axis("i", as_index(ROWS)), "parallel", tuple(body))
    text = str(whole)
    params = tuple(each for each in (X, Y, Z) if f"name='{each.name}'" in text)
    return on_grid(Kernel("kernel", params, (), (S,), (whole,)))


def memory(seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-9, 9, ROWS * N).astype(np.int32) for name in "xyz"}


def run(grid, **options):
    found = memory()
    run_grid(grid, found, blocks=1, **options)
    return found


@pytest.mark.parametrize("body", SPARE)
def test_every_barrier_is_needed(body):
    grid = grid_of(body())
    grid = replace(grid, threads=32, groups=1)
    want = memory()
    run_kernel(grid.kernel, want)
    for seed in range(3):
        for name, array in run(grid, seed=seed).items():
            np.testing.assert_array_equal(array, want[name])
    assert barriers(grid.kernel.body) > 0
    spare = 0
    for number in range(barriers(grid.kernel.body)):
        try:
            run(without_barrier(grid, number))
        except RaceError as race:
            assert re.search(r"[syz]\[\d+\] is (read|written) by thread \d+", str(race))
        else:
            spare += 1
    assert spare == SPARE[body]


def test_a_kernel_made_from_definitions_needs_its_barrier():
    case = cases.mirrored()
    (grid,) = grids_of(case)
    assert barriers(grid.kernel.body) == 1
    with pytest.raises(RaceError, match=re.escape("powers[")):
        run_grid(without_barrier(grid, 0), memory_of(case, [grid]), blocks=1)


def test_equal_values_of_several_iterations_are_a_race():
    grid = grid_of([shared(Store(Y, (as_index(0),), Const(1, "i32")))])
    with pytest.raises(RaceError, match=re.escape("y[0] is written by")):
        run(grid)
    across = grid_of([shared(Store(Y, (j,), Const(1, "i32")))])
    with pytest.raises(RaceError, match=re.escape("is written by iteration")):
        run(across)


def test_a_barrier_in_a_shared_loop():
    with pytest.raises(InvalidLoopsError, match="a barrier in a loop that the threads share"):
        run(grid_of([shared(Barrier(), put(Y, j, at(X, j)))]))


def test_threads_that_part_are_named(monkeypatch):
    """With nobody looking for races, a limit that one thread changes under the others leads them apart."""
    monkeypatch.setattr(evaluate_grid._Traces, "note", lambda *given, **more: None)
    limited = Loop(
        Axis("k", as_index(3)), "serial", (Barrier(),), Index.indirect(Op("cast", (at(Y, 0),), "i64"), 4)
    )
    body = [shared(put(Z, j, Const(1, "i32"))), put(Y, 0, Const(2, "i32")), limited]
    kernel = Kernel("kernel", (Y, Z), (), (), (Loop(Axis("i", as_index(1)), "parallel", tuple(body)),))
    found = {"y": np.zeros(ROWS * N, np.int32), "z": np.zeros(ROWS * N, np.int32)}
    with pytest.raises(
        InvalidLoopsError, match=r"thread 0 .*, thread \d+ (has ended|waits at statement 2.0)"
    ):
        run_grid(Grid(kernel, 32, 1), found)


def test_in_place():
    """Rows that are written where they are read: x[j] = x[j] - max of x."""
    largest = Reducer("top", "max", at(X, j), "i32")
    body = [
        ReduceLoop(Axis("j", as_index(N)), "vector", (), (largest,)),
        shared(put(X, j, Op("sub", (at(X, j), Local("top", "i32")), "i32"))),
    ]
    grid = grid_of(body)
    rows = memory()["x"].reshape(ROWS, N)
    np.testing.assert_array_equal(run(grid)["x"].reshape(ROWS, N), rows - rows.max(1, keepdims=True))


def test_memory_that_is_missing():
    grid = grid_of(through_scratch())
    with pytest.raises(InvalidLoopsError, match="no memory for x"):
        run_grid(grid, {})


@pytest.mark.parametrize("seed", range(int(os.environ.get("LAMPWORK_FUZZ", "20"))))
def test_random_bodies_fuzz(seed):
    kernel = RandomBody(seed).build()
    rng = np.random.default_rng(seed)
    given = {
        each.name: rng.integers(-9, 9, each.shape[0].as_int()).astype(np.int32) for each in kernel.params
    }
    want, by_threads, by_code = ({name: array.copy() for name, array in given.items()} for _ in range(3))
    run_kernel(kernel, want)
    run_grid(on_grid(kernel), by_threads, blocks=1 + seed % 2, seed=seed, wide=seed % 3 > 0)
    assert run_code(kernel, by_code, aligned=seed % 3 > 0) == 0
    for name, array in want.items():
        np.testing.assert_array_equal(by_threads[name], array, err_msg=str(kernel))
        np.testing.assert_array_equal(by_code[name], array, err_msg=str(kernel))


def test_aligned_or_not():
    for make in (cases.flat, cases.softmax):
        check_grids(make(), wide=False)
