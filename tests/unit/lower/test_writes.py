"""Caches written in place: what is copied, what a failing call leaves, who notices the write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from children import failure
from guarded_memory import run as run_guarded
from instruction_sets import INSTRUCTION_SETS
from lower_harness import record
from scalar_target import target_named
from symbolic_harness import compile_symbolic
from torch import Tensor

import lampwork
from lampwork import config
from lampwork.backends.native.compile import Artifacts, compile_program
from lampwork.errors import RuntimeFailure
from lampwork.runtime import Executable
from lampwork.runtime.program import CallAten, Program, Ref


def program_of(
    fn: Callable[..., Any],
    inputs: Sequence[Tensor],
    isa: str | None = None,
    views: Sequence[tuple[int, int]] = (),
    *,
    of_content: bool = False,
) -> Program:
    """`of_content`: the first result is a view of what is written to an input, in place of the input."""
    recorded = record(fn, inputs, [])
    if of_content:
        results = recorded.graph.output_node().args[0]
        content, view = results[recorded.mutations[0][1]], results[0]
        while view.args[0].op != "placeholder":
            view = view.args[0]
        view.update_arg(0, content)
        recorded.graph.lint()
    target = target_named(isa) if isa else target_named("sse4")
    with config.using(verify=True):
        program = compile_program(recorded.graph, recorded.mutations, target, Artifacts(), views=views)
    assert isinstance(program, Program)
    return program


def copies(program: Program) -> list[str]:
    """The ATen calls that move memory: not of a tensor to itself, which is a new version of it."""
    calls = [step for step in program.instructions if isinstance(step, CallAten)]
    return [
        call.op
        for call in calls
        if call.op != "aten::copy_.default" or len({arg for arg in call.args if isinstance(arg, Ref)}) > 1
    ]


def step(cache: Tensor, k: Tensor, at: Tensor) -> Tensor:
    cache[1].index_copy_(1, at, k)
    return cache[1].sum(1)


CACHE = torch.randn(2, 3, 16, 5)
K = torch.randn(3, 1, 5)
AT = torch.tensor([4])


@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
def test_only_the_new_rows_are_written(isa: str) -> None:
    program = program_of(step, [CACHE, K, AT], isa)
    assert copies(program) == []
    assert [at for at, _ in program.undo] and program.arena_bytes < CACHE.nbytes // 4
    cache, expected = CACHE.clone(), CACHE.clone()
    (got, *_) = Executable(program, []).run([cache, K, AT])
    torch.testing.assert_close(got, step(expected, K, AT))
    assert torch.equal(cache, expected)
    assert cache._version == expected._version


def read_later(cache: Tensor, k: Tensor, at: Tensor) -> Tensor:
    """Functional calls see what was there before."""
    written = torch.index_copy(cache, 2, at, k.expand(2, 3, 1, 5))
    cache.index_copy_(2, at, k.expand(2, 3, 1, 5) + 1)
    cache[0, 0, 0] = written[1, 1, 1]
    return written


def shifted(cache: Tensor, k: Tensor, at: Tensor) -> Tensor:
    cache[:, :, :8] = cache[:, :, 4:12].clone()
    return cache * 2


@pytest.mark.parametrize("fn", [read_later, shifted])
def test_readers_see_what_was_there_when_they_were_written(fn: Any) -> None:
    cache, expected = CACHE.clone(), CACHE.clone()
    (got, *_) = Executable(program_of(fn, [CACHE, K, AT]), []).run([cache, K, AT])
    assert torch.equal(got, fn(expected, K, AT)) and torch.equal(cache, expected)
    assert got.untyped_storage().data_ptr() != cache.untyped_storage().data_ptr()


OF_COLUMNS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda x: x[0],
    "expanded": lambda x: x[0].expand(3, -1),
    "expanded within": lambda x: x.unsqueeze(1).expand(-1, 3, -1),
    "expanded whole": lambda x: x.expand(2, *x.shape),
    "unfolded": lambda x: x.unfold(1, 2, 1),
}


@pytest.mark.parametrize("view", OF_COLUMNS)
@pytest.mark.parametrize("seen", [False, True], ids=["a copy", "a view of the input"])
def test_results_that_are_views_of_what_is_written(view: str, seen: bool) -> None:
    """The strides of the view are those of the memory that it is of, also where that is a copy."""

    def fn(x: Tensor) -> Tensor:
        x[:, 1] = 7.0
        return OF_COLUMNS[view](x)

    for rows in (2, 4):
        given, expected = torch.randn(4, rows).t(), torch.empty(4, rows).t()
        expected.copy_(given)
        program = program_of(fn, [given], views=[(0, 0)] if seen else [], of_content=True)
        assert copies(program) == []
        (got, *_) = Executable(program, []).run([given])
        wanted = fn(expected)
        assert torch.equal(got, wanted) and torch.equal(given, expected)
        assert got.stride() == wanted.stride()
        assert (got.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()) is seen


def test_what_is_no_view_of_the_content_is_copied_all_the_same() -> None:
    def fn(x: Tensor) -> Tensor:
        x[0] = 1.0
        before = x.clone()
        x[1] = 2.0
        return before[:1]

    x = torch.zeros(4, 4)
    (got, *_) = Executable(program_of(fn, [x], views=[(0, 0)]), []).run([x])
    got.fill_(5)
    assert x[:2].tolist() == [[1.0] * 4, [2.0] * 4]


def test_a_call_that_fails_leaves_its_inputs() -> None:
    def fn(cache: Tensor, k: Tensor, at: Tensor, row: Tensor, table: Tensor) -> Tensor:
        cache[0].index_copy_(1, at, k + cache.sum())
        cache[1, :, 3] = cache[0, :, 3] * 2
        return table[row] + cache.sum()

    table = torch.randn(4, 5)
    program = program_of(fn, [CACHE, K, AT, torch.tensor([1]), table])
    assert len(program.undo) == 2 and not copies(program)
    executable, cache = Executable(program, []), CACHE.clone()
    with pytest.raises(RuntimeFailure):
        executable.run([cache, K, AT, torch.tensor([4]), table])
    assert torch.equal(cache, CACHE) and cache._version == 0
    with pytest.raises(RuntimeFailure):
        executable.run([cache, K, torch.tensor([16]), torch.tensor([1]), table])
    assert torch.equal(cache, CACHE)
    compiled, expected = lampwork.compile(fn), CACHE.clone()
    compiled(cache, K, AT, torch.tensor([1]), table)
    fn(expected, K, AT, torch.tensor([1]), table)
    for call, given in ((compiled, cache), (fn, expected)):
        with pytest.raises(IndexError):
            call(given, K, AT, torch.tensor([4]), table)
    torch.testing.assert_close(cache, expected)


def test_memory_that_is_shared_until_it_is_written_gets_its_copy() -> None:
    program, cache = program_of(step, [CACHE, K, AT]), CACHE.clone()
    lazy = torch._lazy_clone(cache)
    (got, *_) = Executable(program, []).run([lazy, K, AT])
    assert torch.equal(cache, CACHE) and not torch.equal(lazy, CACHE)
    expected = CACHE.clone()
    torch.testing.assert_close(got, step(expected, K, AT))
    assert torch.equal(lazy, expected)


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k: Tensor
        self.register_buffer("k", torch.zeros(2, 16, 4))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.k[:, at] = x
        return (self.k * 2).sum(1)


def test_a_buffer_of_a_module() -> None:
    mine, theirs = Cached(), Cached()
    compiled = lampwork.compile(mine)
    for place in range(4):
        x, at = torch.randn(2, 1, 4), torch.tensor([place])
        torch.testing.assert_close(compiled(x, at), theirs(x, at))
        assert torch.equal(mine.k, theirs.k) and mine.k._version == theirs.k._version
        mine.k[0, 9] += 1
        theirs.k[0, 9] += 1


def test_gradients_of_what_is_written_beside() -> None:
    def fn(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
        old = cache.sum()
        cache[:, at] = 3.0
        return old + (cache * x).sum()

    compiled = lampwork.compile(fn)
    for place in range(3):
        grads = []
        for call in (compiled, fn):
            cache, x = torch.ones(2, 6, 4), torch.arange(4.0).requires_grad_()
            call(cache, x, torch.tensor([place])).backward()
            grads.append((x.grad, cache))
        (mine, cache), (theirs, expected) = grads
        assert mine is not None and theirs is not None
        torch.testing.assert_close(mine, theirs)
        assert torch.equal(cache, expected)


def test_open_sizes() -> None:
    names = [[None, None, "n", None], [None, None, None], [None]]
    compiled = compile_symbolic(step, [CACHE, K, AT], names)
    for size in (8, 5, 31):
        cache = torch.randn(2, 3, size, 5)
        expected = cache.clone()
        (got,) = compiled.run([cache, K, AT], {"n": size})
        torch.testing.assert_close(got, step(expected, K, AT))
        assert torch.equal(cache, expected)


def _guarded(isa: str, *, front: bool) -> None:
    program = program_of(step, [CACHE, K, AT], isa)
    for place in (0, 15):
        expected = CACHE.clone()
        wanted = step(expected, K, torch.tensor([place]))
        got = run_guarded(program, [CACHE, K, torch.tensor([place])], [], front=front)
        torch.testing.assert_close(got[0], wanted)


@pytest.mark.parametrize("front", [False, True], ids=["back", "front"])
def test_nothing_beside_the_cache(front: bool) -> None:
    assert not failure([("writes", partial(_guarded, "avx2", front=front))])


@pytest.mark.parametrize("scatter", ["slice", "select"])
def test_memory_with_gaps_keeps_them(scatter: str) -> None:
    """A scatter's result has the strides of its input, gaps and all; a write to it leaves them."""

    def fn(x: Tensor) -> Tensor:
        y = x.slice_scatter(x[:, :2], 1, 1, 3) if scatter == "slice" else x.select_scatter(x[:, 0], 1, 1)
        y.mul_(2)
        y[:, 2] = 0
        return y

    x = torch.randn(2, 7, 4)[:, 1:-1]
    with torch.no_grad():
        eager, found = fn(x), lampwork.compile(fn)(x)
    assert torch.equal(found, eager) and found.stride() == eager.stride() == (28, 4, 1)
