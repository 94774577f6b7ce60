"""Recursion as deep as the stack of a thread allows is captured; what is deeper is Python's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import lampwork

X = torch.ones(2)


def recursive(x, n):
    return x * 1.01 if n == 0 else recursive(x, n - 1) + 0.5


@pytest.fixture(autouse=True)
def deep(monkeypatch) -> Iterator[None]:
    monkeypatch.delenv("LAMPWORK_STRICT")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@pytest.mark.parametrize("depth", (100, 5000))
def test_deep_recursion_is_left_to_python(depth):
    compiled = lampwork.compile(recursive)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.extend(compiled(X, depth) for _ in range(2)))
    thread.start()
    thread.join()
    assert len(found) == 2 and all(torch.equal(each, recursive(X, depth)) for each in found)


def test_the_record_names_the_cause():
    record, *_ = lampwork.explain(recursive)(X, 5000).refusals
    assert record.code == "LW124" and "recursive is the last of a thousand calls" in record.cause
