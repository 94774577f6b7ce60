"""A capture that interprets for long without recording an operator leaves the computation to Python."""

from __future__ import annotations

import pytest
import torch
from capture_reference import Reference

import lampwork
from lampwork.capture import FrameRefused, capture
from lampwork.capture.state import effort

X = torch.ones(2)
N = 400


@pytest.fixture(autouse=True)
def little(monkeypatch):
    monkeypatch.setattr(effort, "_MOST", 2000)


def count_up(n):
    i = 0
    while i < n:
        i += 1
    return i


def bounded_by_an_argument(x, n):
    i = 0
    while i < n:
        i += 1
    return x + i


def after_an_operator(x, n):
    y = x * 2
    i = 0
    for j in range(n):
        i += j % 3
    return y + i


def in_a_callee(x, n):
    y = x * 2
    return y + count_up(n)


def calls_often(x, n):
    i = 0
    for _ in range(n // 4):
        i += count_up(2)
    return x + i


PROGRAMS = (bounded_by_an_argument, after_an_operator, in_a_callee, calls_often)


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_long_loop_runs_in_python(program, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    compiled = lampwork.compile(program)
    for n in (10 * N, 10 * N + 1, 10 * N + 2):
        assert torch.equal(compiled(X, n), program(X, n))
    found = lampwork.explain(program)(X, 10 * N)
    assert "LW122" in {record.code for record in (*found.breaks, *found.refusals)}


@pytest.mark.parametrize("program", (bounded_by_an_argument, calls_often))
def test_nothing_but_the_loop_is_refused(program):
    with pytest.raises(FrameRefused, match="computes for long without an operator of torch"):
        capture(program, (X, 10 * N), {})


@pytest.mark.parametrize("program", (after_an_operator, in_a_callee))
def test_what_comes_before_the_loop_is_compiled(program):
    (record,) = capture(program, (X, 10 * N), {}).breaks
    assert record.code == "LW122"


def many_operators(x, n):
    for _ in range(n // 8):
        x = x + 1
        for j in range(20):
            n += j
    return x * n


@pytest.mark.parametrize("program", (*PROGRAMS, many_operators))
def test_twin_that_is_captured(program):
    n = 8 * N if program is many_operators else N // 4
    reference = Reference(program)
    assert torch.equal(reference(X, n), program(X, n))
    assert not reference.records and not reference.refusals


def test_an_open_number_that_bounds_a_loop_is_closed():
    compiled = lampwork.compile(bounded_by_an_argument)
    for n in (20, 21, 22):
        compiled(X, n)
    assert compiled.entries[-1].region.symbols
    for n in (150, 151, 152):
        assert torch.equal(compiled(X, n), X + n)
    assert all(len(entry.region.conditions) <= 120 for entry in compiled.entries)
