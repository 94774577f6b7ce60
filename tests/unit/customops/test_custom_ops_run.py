"""Operators of torch.library inside compiled functions: opaque nodes with their own fake kernels."""

from __future__ import annotations

import threading
from typing import Any

import custom_ops
import pytest
import torch
from torch import Tensor

import lampwork

ops = torch.ops.lw_custom


@pytest.fixture(autouse=True)
def no_calls() -> None:
    custom_ops.calls.clear()


def _check(fn: Any, *inputs: Tensor) -> Any:
    """The compiled function gives eager's result on two calls; what was compiled."""
    compiled = lampwork.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(*inputs), fn(*inputs))
    return compiled


X = torch.randn(4, 5)


def test_one_result_inside_one_native_part() -> None:
    compiled = _check(lambda x: ops.add_div(x, x * 2, 3.0) + 1, X)
    assert compiled.stages.partition == "part 0: native, 3 nodes: mul, lw_custom.add_div, add"
    assert len(custom_ops.calls) == 4  # once for each call, eager ones included: never while capturing


def test_the_python_object_is_the_operator() -> None:
    compiled = _check(lambda x: custom_ops.add_div(x, x * 2, 3.0) + 1, X)
    assert "lw_custom.add_div" in compiled.stages.partition


def test_several_results() -> None:
    compiled = _check(lambda x: (ops.both(x * 2)[1] + 1, ops.both(x)[0]), X)
    assert len(compiled.stages.partition.splitlines()) == 1


def test_a_list_of_results() -> None:
    compiled = _check(lambda x: torch.stack(ops.multiples(x * 2, 3)) + 1, X)
    assert len(compiled.stages.partition.splitlines()) == 1


def test_no_result_is_an_effect_that_stays() -> None:
    def fn(x: Tensor) -> Tensor:
        ops.note(x * 2)
        return x + 1

    compiled = lampwork.compile(fn)
    ones = torch.ones(2)
    for _ in range(3):
        compiled(ones)
    assert custom_ops.calls == ["note 4.0"] * 3


def test_an_operator_that_writes_a_value() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 1
        ops.increase(y, 2.0)
        return y * 2

    _check(fn, X)


def test_an_operator_that_writes_an_input() -> None:
    def fn(x: Tensor) -> Tensor:
        ops.increase(x, 2.0)
        return x * 2

    ours, theirs = X.clone(), X.clone()
    compiled = lampwork.compile(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(ours), fn(theirs))
        torch.testing.assert_close(ours, theirs)


def test_an_operator_that_writes_and_returns() -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return ops.pop(y), y * 2

    _check(fn, X)


def test_library_define_and_impl() -> None:
    assert "lw_custom.scale" in _check(lambda x: ops.scale(x + 1, 2.5) * 2, X).stages.partition


def test_a_composite_operator_is_seen_through() -> None:
    compiled = _check(lambda x: ops.composed(x) * 2, X)
    assert compiled.stages.partition == "part 0: native, 3 nodes: relu, add, mul"


def test_without_a_fake_kernel_it_breaks_the_graph_and_says_so() -> None:
    def fn(x: Tensor) -> Tensor:
        return ops.no_fake(x + 1) * 2

    compiled = _check(fn, X)
    text = str(lampwork.explain(fn)(X))
    assert "no_fake" in text and "fake" in text
    with pytest.raises(lampwork.LampworkError, match="no_fake"):
        lampwork.compile(fn, fullgraph=True)(X)
    assert compiled(X).shape == X.shape


def test_registered_gradients() -> None:
    compiled = lampwork.compile(lambda x: (ops.square(x) * 3).sum())
    x = X.clone().requires_grad_()
    compiled(x).backward()
    torch.testing.assert_close(x.grad, 6 * X)


def test_sizes_that_change() -> None:
    compiled = lampwork.compile(lambda x: ops.add_div(x, x[:1], 2.0).relu() + 1)
    for rows in (3, 4, 9, 1, 6):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x), torch.relu((x + x[:1]) / 2) + 1)
    assert len(compiled.entries) <= 3


def test_many_threads_run_python_operators_at_once() -> None:
    """The program runs without the GIL; an operator written in Python takes it."""
    compiled = lampwork.compile(lambda x: ops.add_div(x * 2, x, 3.0) + ops.both(x)[0])
    compiled(torch.randn(64, 8))
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))
        want = x + x + 1
        for _ in range(50):
            if not torch.allclose(compiled(x), want, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_operator_that_raises() -> None:
    @torch.library.custom_op("lw_custom::picky", mutates_args=())
    def picky(x: Tensor) -> Tensor:
        if float(x.sum()) > 10:
            raise ValueError("too much")
        return x.clone()

    picky.register_fake(torch.empty_like)
    compiled = lampwork.compile(lambda x: picky(x + 1) * 2)
    torch.testing.assert_close(compiled(torch.zeros(2)), torch.full((2,), 2.0))
    with pytest.raises(ValueError, match="too much"):
        compiled(torch.full((2,), 100.0))
    torch.testing.assert_close(compiled(torch.zeros(2)), torch.full((2,), 2.0))


def test_torchs_own_check_of_the_operators_holds() -> None:
    torch.library.opcheck(custom_ops.add_div, (X, X, 2.0))
