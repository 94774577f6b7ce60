"""Calls nested deeper than the thread's stack allows to capture."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import lampwork
from lampwork.capture.capture import capture
from lampwork.capture.model.errors import FrameRefused

KILOBYTE = 1 << 10
X = torch.randn(3)


def nested(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * 1.01 if n == 0 else nested(x, n - 1) + 0.5


@pytest.fixture(autouse=True)
def deep() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    yield
    sys.setrecursionlimit(before)


def in_stack(kilobytes: int, work: Callable[[], object]) -> object:
    """`work()` in a thread with a stack of that size."""
    results: list[object] = []
    before = threading.stack_size(kilobytes * KILOBYTE)
    try:
        thread = threading.Thread(target=lambda: results.append(work()))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    (result,) = results
    return result


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@pytest.mark.parametrize(("kilobytes", "depth"), [(256, 200), (1024, 1000), (8192, 4000)])
def test_they_run_eager(kilobytes, depth, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT", raising=False)
    compiled = lampwork.compile(nested)
    want = nested(X, depth)
    for _ in range(2):
        assert torch.equal(in_stack(kilobytes, lambda: compiled(X, depth)), want)


def refusal(depth: int) -> object:
    try:
        return capture(nested, (X, depth), {})
    except FrameRefused as error:
        return error


def test_the_record_names_the_cause_and_the_fix():
    error = in_stack(256, lambda: refusal(1000))
    assert isinstance(error, FrameRefused) and error.code == "LW124"
    assert error.cause == (
        "nested is called where the thread's stack has no room to capture it: a call takes about 3 KB of it while "
        "it is captured, and 128 KB stay free"
    )
    assert error.fix == (
        "call the function less deep, or in a thread with a larger stack (threading.stack_size, ulimit -s)"
    )


def test_a_small_stack_is_enough_for_ordinary_nesting():
    compiled = lampwork.compile(nested)
    assert torch.equal(in_stack(256, lambda: compiled(X, 20)), nested(X, 20))
    assert len(compiled.entries) == 1
