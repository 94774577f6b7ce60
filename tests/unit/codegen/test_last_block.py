"""What the block that comes last finishes: results, who must see what, and what is left to a kernel of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import grid_cases as cases
import numpy as np
import pytest
from grids import CARD, Case, check_grids, memory_of
from grids import kernels_of as kernels_for
from simulated import MODEL, ForbiddenError, run_simulated

from lampwork.backends.native.tuning.tune_card import reads_and_writes
from lampwork.codegen.gpu.device import emit_device
from lampwork.codegen.gpu.nvidia import describe
from lampwork.loops.ir.grid import Grid
from lampwork.loops.ir.kernel import is_finished_by_last, parallel_extent, statements
from lampwork.loops.ir.nodes import Kernel, Loop, Stmt, WhenLast
from lampwork.loops.ir.verify import InvalidLoopsError, verify_kernel
from lampwork.loops.reference.evaluate import evaluate_definitions
from lampwork.loops.reference.evaluate_grid import RaceError, run_grid
from lampwork.loops.schedule.grid import grid_variants, on_grid

Make = Callable[[], Case]
ONE: dict[str, Make] = {
    "total": lambda: cases.total(9000),
    "maximum of all": lambda: cases.total(9000, "max"),
    "sums of rows": lambda: cases.rows("sum", 2, 16384),
    "moments": lambda: cases.moments(2, 16384),
    "columns of one block": lambda: cases.columns("sum", 256, 32, "f16"),
    "columns of several blocks": lambda: cases.columns("max", 256, 48),
    "losses": lambda: cases.losses(128, 64),
    "losses of rows that no block divides": lambda: cases.losses(70, 48),
    "losses of bf16": lambda: cases.losses(16, 512, "bf16"),
    "losses of large blocks": lambda: cases.losses(4, 1024),
    "losses of long rows": lambda: cases.losses(2, 16384, "bf16"),
}
SMALL = replace(CARD, kernel_work=1 << 9)
"""The card of the tests, to which less work is worth several blocks."""


def kernels_of(case: Case) -> list[Kernel]:
    return kernels_for(case, SMALL)


def grids_of(case: Case) -> list[Grid]:
    return [on_grid(each) for each in kernels_of(case)]


@pytest.mark.parametrize("name", ONE)
def test_one_kernel(name: str) -> None:
    """It is right thread by thread, as code of this CPU, and as code of a card; and the same whoever comes last."""
    case = ONE[name]()
    grids = grids_of(case)
    assert [is_finished_by_last(each.kernel) for each in grids] == [True]
    (grid,) = grids
    check_grids(case, grids, blocks=3)
    want = evaluate_definitions(case.definitions, case.inputs)
    found: list[dict[str, bytes]] = []
    for seed, blocks in ((0, 5), (1, 1 << 31)):
        memory = memory_of(case, grids)
        run_simulated(grid, memory, blocks=blocks, seed=seed)
        for out in case.outputs:
            shaped = memory[out].reshape(want[out].shape)
            np.testing.assert_allclose(shaped, want[out], rtol=case.tolerance, atol=case.tolerance)
        found.append({out: memory[out].tobytes() for out in case.outputs})
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["losses", "columns of several blocks"])
def test_unaligned_buffers(name: str) -> None:
    case = ONE[name]()
    (grid,) = grids_of(case)
    memory = memory_of(case, [grid])
    run_simulated(grid, memory, aligned=False, blocks=3)
    want = evaluate_definitions(case.definitions, case.inputs)
    for out in case.outputs:
        np.testing.assert_allclose(memory[out].reshape(want[out].shape), want[out], rtol=4e-2, atol=4e-2)


def test_variants_keep_the_groups_of_a_block() -> None:
    case = ONE["losses"]()
    (kernel,) = kernels_of(case)
    grid, names = on_grid(kernel), grid_variants(kernel)
    assert grid.groups > 1 and names
    for name in names[:3]:
        varied = on_grid(replace(kernel, variant=name))
        assert varied.groups == grid.groups
        memory = memory_of(case, [varied])
        run_simulated(varied, memory)
        np.testing.assert_allclose(
            memory["y"], evaluate_definitions(case.definitions, case.inputs)["y"], rtol=1e-3
        )


@pytest.mark.parametrize("rows, columns", [(4096, 64), (512, 2048), (1 << 15, 32), (131, 4096)])
def test_groups_that_go_through_rows_all_run_at_once(rows: int, columns: int) -> None:
    """A card of 132 multiprocessors has room for 1024 threads with 64 registers on each."""
    (kernel,) = kernels_for(cases.losses(rows, columns), describe(90, 132))
    grid, extent = on_grid(kernel), parallel_extent(kernel).as_int()
    assert grid.counters == 1 and extent is not None and rows % extent == 0
    assert grid.groups == 1 or grid.threads * grid.groups >= 128
    assert extent * grid.threads <= 132 * 1024 or extent == rows


def blocks_of(kernels: list[Kernel]) -> list[tuple[int, int, bool]]:
    """Blocks and their threads, and whether the last one finishes."""
    found: list[tuple[int, int, bool]] = []
    for kernel in kernels:
        grid, extent = on_grid(kernel), parallel_extent(kernel).as_int()
        assert extent is not None
        threads = grid.threads * grid.groups
        found.append((-(-extent // grid.groups), threads, is_finished_by_last(kernel)))
    return found


ONE_WAVE: dict[str, tuple[Make, int]] = {
    "total": (lambda: cases.total(1 << 22), 256),
    "total of a length with other factors": (lambda: cases.total(3 * 11 << 17), 264),
    "sums of rows": (lambda: cases.rows("sum", 64, 1 << 16), 256),
    "sums of rows of bf16": (lambda: cases.rows("sum", 16, 1 << 18, "bf16"), 256),
    "columns": (lambda: cases.columns("sum", 1 << 16, 64), 256),
}


@pytest.mark.parametrize("name", ONE_WAVE)
def test_pieces_that_are_read_once_all_run_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of 512 threads for each of 132 multiprocessors."""
    monkeypatch.setattr(cases, "inputs_of", lambda seed, *buffers: {})
    make, blocks = ONE_WAVE[name]
    kernels = kernels_for(make(), describe(90, 132))
    assert blocks_of(kernels) == [(blocks, 512, True)]


def test_lengths_that_no_such_number_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are cut into more pieces, which a second kernel puts together if they are many."""
    monkeypatch.setattr(cases, "inputs_of", lambda seed, *buffers: {})
    kernels = kernels_for(cases.total(1021 * 8192), describe(90, 132))
    assert len(kernels) == 1 and kernels[0].body and blocks_of(kernels)[0][0] in range(133, 529)
    kernels = kernels_for(cases.total(1999 * 2003), describe(90, 132))
    assert len(kernels) == 2 and not any(map(is_finished_by_last, kernels))


# --- what is left as it is --------------------------------------------------------------------------------------------


def test_much_is_left_to_a_kernel_of_many_blocks() -> None:
    """Rows that are cut into pieces and read again: the second kernel is the larger one."""
    kernels = kernels_of(cases.softmax(2, 16384))
    assert len(kernels) == 2 and not any(map(is_finished_by_last, kernels))


@pytest.mark.parametrize("make", [cases.moments, cases.cross_entropy])
def test_pieces_of_many_waves_are_left_to_a_kernel(
    make: Callable[[int, int], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows stay in registers, so they are short and many; blocks that count end late."""
    monkeypatch.setattr(cases, "inputs_of", lambda seed, *buffers: {})
    card = replace(describe(90, 132), cluster=1)
    few, many = (kernels_for(make(rows, 1 << 18), card) for rows in (4, 64))
    assert all(map(is_finished_by_last, few))
    assert len(many) == 2 and not any(map(is_finished_by_last, many))


def test_losses_that_are_results_are_stored_too() -> None:
    case = replace(cases.losses(128, 64), outputs=frozenset(("y", "loss")))
    (grid,) = grids_of(case)
    assert is_finished_by_last(grid.kernel)
    check_grids(case, [grid])


def test_rows_that_no_number_of_blocks_divides() -> None:
    """They are more than run at a time, and a prime number."""
    kernels = kernels_of(cases.losses(1031, 64))
    assert len(kernels) > 1 and not is_finished_by_last(kernels[0])


def test_values_of_rows_that_are_results_stay_in_memory() -> None:
    case = replace(cases.losses(64, 64), outputs=frozenset(("y", "top")))
    (grid,) = grids_of(case)
    assert is_finished_by_last(grid.kernel)
    check_grids(case, [grid])


# --- who must see what ------------------------------------------------------------------------------------------------


def without(kernel: Kernel, change: Callable[[WhenLast], tuple[Stmt, ...]]) -> Kernel:
    (outer,) = kernel.body
    assert isinstance(outer, Loop) and isinstance(outer.body[-1], WhenLast)
    return replace(kernel, body=(replace(outer, body=(*outer.body[:-1], *change(outer.body[-1]))),))


@pytest.mark.parametrize("wrong", ["everybody", "too early", "another counter"])
def test_the_interpreter_sees_who_does_not_wait(wrong: str) -> None:
    case = ONE["sums of rows"]()
    (grid,) = grids_of(case)
    changes: dict[str, Callable[[WhenLast], tuple[Stmt, ...]]] = {
        "everybody": lambda last: last.body,
        "too early": lambda last: (replace(last, among=last.among - 1),),
        "another counter": lambda last: (replace(last, counter=last.counter * 0, counters=1),),
    }
    mutant = replace(grid, kernel=without(grid.kernel, changes[wrong]))
    with pytest.raises(RaceError):
        run_grid(mutant, memory_of(case, [grid]), blocks=3)


FENCE = '  fence syncscope("device") acq_rel\n'
BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n"
COUNT = re.compile(r"(atomicrmw uinc_wrap ptr %\w+, i32 )(\d+)")


def cut(pattern: str, number: int) -> Callable[[str], str]:
    """Without the occurrence of this number, in both copies of the code."""

    def change(text: str) -> str:
        parts = text.split(pattern)
        half = (len(parts) - 1) // 2
        assert half
        kept = ("" if n % half == number else pattern for n in range(len(parts) - 1))
        return "".join(part + end for part, end in zip(parts, [*kept, ""], strict=True))

    return change


MUTANTS: dict[str, tuple[Callable[[str], str], str]] = {
    "no fence before the count": (cut(FENCE, 0), "race with a thread that writes"),
    "no fence after the count": (cut(FENCE, 1), "race with a thread that writes"),
    "one too few": (lambda text: COUNT.sub(lambda m: f"{m[1]}{int(m[2]) - 1}", text), "race|wrong|not zero"),
    "one too many": (lambda text: COUNT.sub(lambda m: f"{m[1]}{int(m[2]) + 1}", text), "wrong|not zero"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    change, said = MUTANTS[name]
    case = ONE["sums of rows"]()
    (grid,) = grids_of(case)
    text = emit_device(grid, MODEL, "lw_kernel")
    assert _found(case, grid, text) == "right"
    mutant = change(text)
    assert mutant != text
    assert re.search(said, _found(case, grid, mutant))


def test_each_barrier_around_the_count_is_needed() -> None:
    """That before it carries the stores of all threads, that behind it what the first thread found."""
    case = ONE["sums of rows"]()
    (grid,) = grids_of(case)
    text = emit_device(grid, MODEL, "lw_kernel")
    before = text[: text.index(FENCE)].count(BARRIER)
    behind = cut(BARRIER, before)
    assert re.search("race|nobody has written", _found(case, grid, behind(text)))
    (losses,) = grids_of(blocks := ONE["losses"]())
    text = emit_device(losses, MODEL, "lw_kernel")
    first = cut(BARRIER, 0)
    assert re.search("race", _found(blocks, losses, first(text)))


def _found(case: Case, grid: Grid, text: str) -> str:
    want = evaluate_definitions(case.definitions, case.inputs)
    for seed in range(2):
        memory = memory_of(case, [grid])
        try:
            run_simulated(grid, memory, blocks=4, seed=seed, text=text)
        except (ForbiddenError, AssertionError) as error:
            return str(error)
        if not all(np.allclose(memory[out].ravel(), want[out].ravel(), 1e-3, 1e-3) for out in case.outputs):
            return "wrong"
    return "right"


# --- the language -----------------------------------------------------------------------------------------------------


def test_a_last_iteration_is_the_end_of_one() -> None:
    (kernel,) = kernels_of(ONE["total"]())
    (outer,) = kernel.body
    assert isinstance(outer, Loop)
    turned = replace(kernel, body=(replace(outer, body=outer.body[::-1]),))
    with pytest.raises(InvalidLoopsError, match="not the end of an iteration"):
        verify_kernel(turned)
    (last,) = (stmt for stmt in statements(kernel.body) if isinstance(stmt, WhenLast))
    none = without(kernel, lambda _: (replace(last, among=0),))
    with pytest.raises(InvalidLoopsError, match="counts nothing"):
        verify_kernel(none)


def test_what_is_passed_to_the_last_block_is_only_written() -> None:
    """So that such kernels are measured as others are, of inputs alone."""
    for case in (cases.columns("max", 256, 48), cases.rows("sum", 2, 16384)):
        finished = [kernel for kernel in kernels_of(case) if is_finished_by_last(kernel)]
        assert finished
        for kernel in finished:
            reads, writes = reads_and_writes(kernel)
            assert reads == {"x"} and writes == {each.name for each in kernel.params} - reads
            assert len(writes) == 2
