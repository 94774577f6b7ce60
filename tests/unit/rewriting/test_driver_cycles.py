"""Rewrites that do not come to an end are found early, named, and leave the graph as it was before."""

from __future__ import annotations

import time

import pytest
import torch
from graphkit import Forgiving, assert_equal, find, ops, record, run

from lampwork.config import Config
from lampwork.errors import Location, RewriteError
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import Rewriter, rule, rule_of


def strict() -> PassContext:
    return PassContext(Config(strict=True))


def x34() -> torch.Tensor:
    return torch.linspace(-3, 3, 12, dtype=torch.float64).reshape(3, 4)


CYCLES = {
    "two": [("exp(x)", "cos(x)"), ("cos(x)", "exp(x)")],
    "three": [("exp(x)", "cos(x)"), ("cos(x)", "sin(x)"), ("sin(x)", "exp(x)")],
    "of itself": [("add(x, y)", "add(y, x)")],
    "of other sizes": [("exp(x)", "neg(neg(cos(x)))"), ("neg(neg(cos(x)))", "exp(x)")],
    "below the root": [("neg(exp(x))", "neg(cos(x))"), ("cos(x)", "exp(x)")],
    "exchange": [("neg(exp(x))", "exp(neg(x))"), ("exp(neg(x))", "neg(exp(x))")],
}


def program(x: torch.Tensor) -> torch.Tensor:
    return ((x + x.sin()).exp().neg() * 2).tanh()


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_is_named(name: str) -> None:
    graph = record(program, x34())
    for node in graph.nodes:
        node.meta["location"] = Location("model.py", 7)
    with pytest.raises(RewriteError, match="not come to an end") as error:
        Rewriter([rule(a, b) for a, b in CYCLES[name]]).run(graph, strict())
    assert set(error.value.rewrites) == {f"{a} -> {b}" for a, b in CYCLES[name]}
    assert "model.py:7" in str(error.value)
    verify(graph)


@pytest.mark.parametrize("name", CYCLES)
def test_the_graph_is_as_before_and_the_rest_goes_on(name: str) -> None:
    graph, host = record(program, x34()), Forgiving()
    rules = [rule(a, b) for a, b in CYCLES[name]]
    count = Rewriter([*rules, rule("mul(x, 2)", "add(x, x)", name="twice")]).run(graph, host)
    verify(graph)
    assert len(host.faults) == 1 and host.hits["twice"] == 1
    # Found after a few rounds, not after thousands.
    assert count < 60
    assert sorted(ops(graph)) == sorted(["sin", "add", "exp", "neg", "add", "tanh"])
    x = x34()
    assert_equal(run(graph, x), [((x + x.sin()).exp().neg() + (x + x.sin()).exp().neg()).tanh()])


def test_growth_without_end() -> None:
    graph, host = record(program, x34()), Forgiving()
    find(graph, "exp").meta["location"] = Location("model.py", 7)
    start = time.process_time()
    Rewriter([rule("exp(x)", "exp(neg(neg(x)))", name="grows")]).run(graph, host)
    assert time.process_time() - start < 5
    verify(graph)
    (error,) = host.faults
    assert error.rewrites == ("grows",) and "the rewrite grows does not come to an end" in str(error)


def test_long_chains_are_no_cycle() -> None:
    """Many rewrites of one value, each of which makes the graph smaller, or moves something on."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(400):
            x = x.relu()
        return x.exp()

    graph, ctx = record(chain, x34()), PassContext()
    assert Rewriter([rule("relu(relu(x))", "relu(x)")]).run(graph, ctx) == 399
    assert ops(graph) == ["relu", "exp"]

    def down(x: torch.Tensor) -> torch.Tensor:
        x = -x
        for i in range(400):
            x = x * float(i + 2)
        return x.exp()

    graph = record(down, x34())
    assert Rewriter([rule("mul(neg(x), c:number)", "neg(mul(x, c))")]).run(graph, ctx) == 400
    assert ops(graph)[-2:] == ["neg", "exp"]


def test_names_of_a_cycle_with_functions() -> None:
    there = rule_of(lambda x: torch.exp(x), lambda x: torch.cos(x), name="there")
    back = rule_of(lambda x: torch.cos(x), lambda x: torch.exp(x), name="back")
    graph = record(program, x34())
    with pytest.raises(RewriteError, match="the rewrites .* do not come to an end: one undoes") as error:
        Rewriter([there, back]).run(graph, strict())
    assert sorted(error.value.rewrites) == ["back", "there"]
