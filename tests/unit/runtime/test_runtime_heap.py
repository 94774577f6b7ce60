"""Memory that programs of training steps take from the heap and give back while they run."""

from __future__ import annotations

import weakref

import pytest
import torch
from runtime_programs import Kernels, value

from lampwork.backends.native.heap_values import HEAP_BYTES, in_heap
from lampwork.runtime import Executable, heap_bytes, trim_memory
from lampwork.runtime.program import CallAten, CallKernel, Program, Ref, Release, Take

LARGE = HEAP_BYTES // 4
DOUBLED = 4


def doubling(kernels: Kernels, like: torch.Tensor, look: str = "") -> Program:
    """x -> 16 x, by way of two arena values and a fresh one; `look` is called, with the result, in the end."""
    n = like.numel()
    size = like.numel() * 4
    values = (
        value("input", like, position=0),
        value("arena", like, offset=0),
        value("arena", like, offset=size),
        value("arena", like, offset=0),
        value("fresh", like),
    )
    calls = tuple(
        CallKernel(kernels["double"], (i, i + 1), extent=n, grain=1 << 30, name="double")
        for i in range(DOUBLED)
    )
    looks = (CallAten(look, (Ref(DOUBLED),)),) if look else ()
    return Program(values, calls + looks, (DOUBLED,), 1, 0, 2 * size)


def test_large_values_have_memory_from_first_use_to_last(kernels: Kernels) -> None:
    program = in_heap(doubling(kernels, torch.randn(LARGE)))
    assert [v.kind for v in program.values] == ["input", "heap", "heap", "heap", "fresh"]
    assert program.arena_bytes == 0
    order = [step.values if isinstance(step, Take | Release) else "kernel" for step in program.instructions]
    assert order == [(1,), "kernel", (0,), (2,), "kernel", (1,), (3,), "kernel", (2,), (4,), "kernel", (3,)]


def test_small_values_stay_in_the_arena(kernels: Kernels) -> None:
    like = torch.randn(LARGE - 1)
    program = in_heap(doubling(kernels, like))
    assert [v.kind for v in program.values] == ["input", "arena", "arena", "arena", "fresh"]
    assert all(isinstance(step, CallKernel) for step in program.instructions)
    assert program.arena_bytes <= 2 * (like.numel() * 4 + 64)


@pytest.mark.parametrize("n", [0, 1, LARGE - 1, LARGE, 300_001])
def test_numbers_are_those_of_the_arena(kernels: Kernels, n: int) -> None:
    x = torch.randn(n)
    run = Executable(in_heap(doubling(kernels, x)))
    before = heap_bytes()
    for _ in range(2):
        result = run.run([x])[0]
        assert torch.equal(result, x * 16)
    assert heap_bytes() - before <= x.numel() * 4 + 64
    result.resize_(2 * n + 7)
    del result
    assert heap_bytes() == before
    trim_memory()
    assert torch.equal(run.run([x])[0], x * 16)


def test_results_outlive_their_program(kernels: Kernels) -> None:
    x = torch.randn(LARGE)
    run = Executable(in_heap(doubling(kernels, x)))
    result = run.run([x])[0]
    del run
    trim_memory()
    assert torch.equal(result, x * 16)


def test_consumed_inputs_are_dropped_after_their_last_use(kernels: Kernels) -> None:
    seen: list[bool] = []
    with torch.library._scoped_library("lampwork_test_heap", "DEF") as library:
        library.define("look(Tensor x) -> ()")
        library.impl("look", lambda x: seen.append(storage() is not None), "CPU")
        x = torch.randn(LARGE)
        run = Executable(in_heap(doubling(kernels, x, "lampwork_test_heap::look.default")))
        expected = x * 16
        given = [x]
        storage = weakref.ref(x)
        del x
        assert torch.equal(run.run(given)[0], expected)
        assert seen == [True]
        assert torch.equal(run.consume(given)[0], expected)
        assert seen == [True, False]
        assert given == []


def test_consumed_inputs_that_others_hold_stay(kernels: Kernels) -> None:
    x = torch.randn(LARGE)
    copy = x.clone()
    run = Executable(in_heap(doubling(kernels, x)))
    assert torch.equal(run.consume([x])[0], copy * 16)
    assert torch.equal(x, copy)
    with pytest.raises(TypeError, match="list"):
        run.consume((x,))
