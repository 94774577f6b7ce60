"""Programs for different sizes that share their bound tensors, constants and memory."""

from __future__ import annotations

import threading

import pytest
import torch
from runtime_programs import Kernels, value

from lampwork.runtime import Executable
from lampwork.runtime.program import CallAten, CallKernel, Program, Ref, Value

WIDTH = 16


def constants_of(kernels: Kernels) -> Program:
    """double(p)."""
    like = torch.empty(WIDTH)
    return Program(
        (value("input", like, position=0), value("fresh", like)),
        (CallKernel(kernels["double"], (0, 1), extent=WIDTH),),
        (1,),
        1,
        0,
        0,
    )


def row_program(kernels: Kernels, rows: int, constants: Program) -> Program:
    """x + x + 2 * p for x of shape (rows, WIDTH), the sum of x and x in the arena."""
    like = torch.empty(rows, WIDTH)
    n = like.numel()
    values = (
        value("input", like, position=0),
        value("constant", torch.empty(WIDTH), position=0),
        value("arena", like),
        Value("aten", torch.float32, (rows, WIDTH), (WIDTH, 1)),
    )
    calls = (
        CallKernel(kernels["add"], (0, 0, 2), extent=n),
        CallAten("aten::add.Tensor", (Ref(2), Ref(1)), outs=(3,)),
    )
    return Program(values, calls, (3,), 1, 1, n * 4, constants)


def test_constants_are_computed_once_for_all_sizes(kernels: Kernels) -> None:
    p = torch.nn.Parameter(torch.randn(WIDTH))
    constants = constants_of(kernels)
    first = Executable(row_program(kernels, 2, constants), (p,))
    programs = {2: first}
    for rows in (3, 50):
        programs[rows] = Executable(row_program(kernels, rows, constants), (p,), share=first)
    programs[7] = Executable(row_program(kernels, 7, constants), share=programs[50])
    assert all(program.bound == (p,) for program in programs.values())

    def check() -> None:
        for rows, program in programs.items():
            x = torch.randn(rows, WIDTH)
            torch.testing.assert_close(program.run([x])[0], (2 * x + 2 * p).detach())

    check()
    assert [program.stats["constant_refreshes"] for program in programs.values()] == [0] * 4
    with torch.no_grad():
        p.mul_(3)
    check()
    check()
    assert [program.stats["constant_refreshes"] for program in programs.values()] == [1] * 4
    assert [program.stats["runs"] for program in programs.values()] == [3] * 4


def test_sharers_outlive_each_other(kernels: Kernels) -> None:
    p = torch.randn(WIDTH)
    constants = constants_of(kernels)
    first = Executable(row_program(kernels, 2, constants), (p,))
    x = torch.randn(2, WIDTH)
    first.run([x])
    second = Executable(row_program(kernels, 9, constants), share=first)
    del first
    y = torch.randn(9, WIDTH)
    for _ in range(3):
        torch.testing.assert_close(second.run([y])[0], 2 * y + 2 * p)
    p.zero_()
    torch.testing.assert_close(second.run([y])[0], 2 * y)


def test_what_cannot_be_shared_is_refused(kernels: Kernels) -> None:
    p, q = torch.randn(WIDTH), torch.randn(WIDTH)
    constants = constants_of(kernels)
    first = Executable(row_program(kernels, 2, constants), (p,))
    Executable(row_program(kernels, 3, constants_of(kernels)), (p,), share=first)  # equal will do
    with pytest.raises(ValueError, match="must have the same bound tensors"):
        Executable(row_program(kernels, 3, constants), (q,), share=first)
    with pytest.raises(TypeError, match="share must be a lampwork._C.Executable"):
        Executable(row_program(kernels, 3, constants), (p,), share=3)  # type: ignore[arg-type]
    like = torch.empty(WIDTH)
    others = Program((value("input", like, position=0),), (), (0,), 1, 0, 0)
    for other in (others, None):
        program = row_program(kernels, 3, constants)
        program = Program(program.values, program.instructions, (3,), 1, 1, program.arena_bytes, other)
        with pytest.raises(ValueError, match="other constants than the program that it shares them with"):
            Executable(program, share=first)
    unbound = Program((value("input", like, position=0),), (), (0,), 1, 0, 0, constants)
    with pytest.raises(ValueError, match="the program has 0 bound tensors, got 1"):
        Executable(unbound, share=first)


def test_sizes_take_turns_in_the_same_memory(kernels: Kernels) -> None:
    """Arena tensors are kept between calls; they must not point into memory that has moved."""
    p = torch.randn(WIDTH)
    constants = constants_of(kernels)
    first = Executable(row_program(kernels, 4, constants), (p,))
    programs = [(4, first)]
    for rows in (1, 30, 2, 3000, 500, 60_000):
        programs.append((rows, Executable(row_program(kernels, rows, constants), share=first)))
    for _ in range(3):
        for rows, program in programs:
            x = torch.randn(rows, WIDTH)
            torch.testing.assert_close(program.run([x])[0], 2 * x + 2 * p)


def test_many_threads_run_programs_that_share(kernels: Kernels) -> None:
    p = torch.randn(WIDTH)
    constants = constants_of(kernels)
    first = Executable(row_program(kernels, 64, constants), (p,))
    programs = {64: first}
    for rows in (700, 1500, 5):
        programs[rows] = Executable(row_program(kernels, rows, constants), share=first)
    wrong: list[tuple[int, int]] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        sizes = list(programs)
        for i in range(80):
            rows = sizes[(seed + i) % len(sizes)]
            x = torch.randn(rows, WIDTH, generator=generator)
            if not torch.equal(programs[rows].run([x])[0], x + x + 2 * p):
                wrong.append((seed, rows))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
