"""Rewrites that are wrong: an error names the rewrite, its source, the node and the user's line; the graph stays."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from graphkit import Forgiving, assert_equal, find, ops, record, run, structure
from torch import Tensor, fx

from lampwork.config import Config
from lampwork.errors import Location, RewriteError
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import Rewriter, rule, rule_of
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.matching.match import Match
from lampwork.verdict import No, Yes

aten = torch.ops.aten
F = torch.nn.functional


def strict() -> PassContext:
    return PassContext(Config(strict=True))


def x34() -> Tensor:
    return torch.linspace(-3, 3, 12, dtype=torch.float64).reshape(3, 4)


def program(x: Tensor) -> Tensor:
    return torch.relu(x + 1).neg()


def graph_of_relu() -> fx.Graph:
    graph = record(program, x34())
    find(graph, "relu").meta["location"] = Location("model.py", 12, "forward")
    return graph


def raises(x: Tensor) -> Any:
    raise ZeroDivisionError("no luck")


def pinned_elsewhere(match: Match, editor: Editor) -> Any:
    return editor.call(aten.neg.default, match.root)


def after(match: Match, editor: Editor) -> Any:
    return editor.call(aten.neg.default, next(iter(match.root.users)))


WRONG = {
    "another shape": (lambda x: x.sum(0), r"another type: float64\[3, 4\] and float64\[4\]"),
    "another dtype": (lambda x: x > 0, r"another type: float64\[3, 4\] and bool\[3, 4\]"),
    "another device": (lambda x: torch.ops.aten._to_copy(x, device=torch.device("meta")), "on cpu and meta"),
    "several results": (lambda x: (x, x), "2 results, its pattern 1"),
    "a call of several results": (lambda x: torch.ops.aten.sort.default(x, 1), "2 results, its pattern 1"),
    "no tensor": (lambda x: 1.5, "the replacement is 1.5, not a tensor"),
    "nothing": (lambda x: None, "the replacement is None, not a tensor"),
    "raises": (raises, "its replacement raised ZeroDivisionError: no luck"),
    "no such overload": (
        lambda x: torch.ops.aten.relu(x, 1),
        "its replacement fails: no overload of aten.relu",
    ),
    "an operand of another kind": (
        lambda x: torch.ops.aten.softmax.int(x, "last"),
        "no overload of softmax takes the operands",
    ),
    "shapes that do not fit": (lambda x: torch.mm(x, x), "torch refuses its replacement"),
    "reads the root": (pinned_elsewhere, "its replacement reads relu, which it replaces"),
    "reads a later node": (after, "its replacement reads neg, which comes after the match"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_replacement(name: str) -> None:
    replacement, message = WRONG[name]
    graph = graph_of_relu()
    before = structure(graph)
    wrong = rule_of(lambda x: torch.relu(x), replacement, name="wrong")
    with pytest.raises(RewriteError, match=message) as error:
        Rewriter([wrong]).run(graph, strict())
    text = str(error.value)
    assert re.search(r"rewrite wrong \(\S+test_driver_faults\.py:\d+\) at relu: ", text)
    assert "at model.py:12 in forward" in text
    assert error.value.rewrites == ("wrong",) and error.value.code == "LW310"
    assert structure(graph) == before
    verify(graph)


@pytest.mark.parametrize("name", WRONG)
def test_the_other_rewrites_go_on(name: str) -> None:
    graph = record(lambda x: torch.relu(x + 1) - (-torch.relu(x * 2)), x34())
    host = Forgiving()
    wrong = rule_of(lambda x: torch.relu(x), WRONG[name][0], name="wrong")
    if name == "reads a later node":
        wrong = rule_of(lambda x: torch.relu(x), raises, name="wrong")
    Rewriter([wrong, rule("sub(x, neg(y))", "add(x, y)", name="right")]).run(graph, host)
    verify(graph)
    # Once is enough: it is left out for the rest of the run.
    assert [e.rewrites for e in host.faults] == [("wrong",)]
    assert host.hits == {"right": 1}
    assert_equal(run(graph, x34()), [torch.relu(x34() + 1) + torch.relu(x34() * 2)])


CHECKS = {
    "raises": (lambda match: match["y"], "its check raised KeyError: .the match has no .*y.*: it has x"),
    "nothing": (lambda match: None, "its check returned None"),
    "a reason alone": (lambda match: "too small", "its check returned 'too small'"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_wrong_check(name: str) -> None:
    check, message = CHECKS[name]
    graph = graph_of_relu()
    for wrong in (
        rule("relu(x)", "clamp_min(x, 0)", name="wrong", check=check),
        rule_of(lambda x: torch.relu(x), lambda x: torch.clamp_min(x, 0), name="wrong", check=check),
    ):
        with pytest.raises(RewriteError, match=message) as error:
            Rewriter([wrong]).run(graph, strict())
        assert (
            "wrong" in str(error.value)
            and "at relu" in str(error.value)
            and "model.py:12" in str(error.value)
        )
        assert ops(graph) == ["add", "relu", "neg"]


@pytest.mark.parametrize("answer, fires", [(True, True), (False, False), (Yes(), True), (No("mine"), False)])
def test_a_check_may_answer_with_a_bool(answer: Any, fires: bool) -> None:
    graph, ctx = graph_of_relu(), PassContext()
    Rewriter([rule("relu(x)", "clamp_min(x, 0)", name="mine", check=lambda _: answer)]).run(graph, ctx)
    assert ("clamp_min" in ops(graph)) == fires
    assert bool(ctx.refusals) != fires


def test_a_line_of_algebra_that_torch_refuses_does_not_fire() -> None:
    graph, ctx = graph_of_relu(), PassContext()
    Rewriter([rule("relu(x)", "mm(x, x)", name="product")]).run(graph, ctx)
    assert ops(graph) == ["add", "relu", "neg"]
    assert list(ctx.refusals)[0][0] == "product"


def test_other_strides_inside_the_graph_are_fine() -> None:
    graph, ctx = record(lambda x: torch.relu(x).view(12).neg(), x34()), PassContext()
    turned = rule_of(
        lambda x: torch.relu(x), lambda x: torch.relu(x.t().contiguous()).t(), name="turned", check=once()
    )
    Rewriter([turned]).run(graph, ctx)
    verify(graph)
    assert ctx.hits == {"turned": 1}
    assert_equal(run(graph, x34()), [torch.relu(x34()).view(12).neg()])


def test_other_strides_of_a_result_are_copied_back() -> None:
    graph, ctx = record(lambda x: torch.relu(x), x34()), PassContext()
    turned = rule_of(
        lambda x: torch.relu(x),
        lambda x: torch.relu(x.t().contiguous().t()),
        name="turned",
        check=once(),
    )
    Rewriter([turned]).run(graph, ctx)
    verify(graph)
    assert ctx.hits == {"turned": 1} and ops(graph)[-1] == "clone"
    assert_equal(run(graph, x34()), [torch.relu(x34())])


def test_a_view_as_a_result_is_refused_where_it_would_have_other_strides() -> None:
    graph, ctx = record(lambda x: torch.relu(x), x34()), PassContext()
    turned = rule_of(lambda x: torch.relu(x), lambda x: torch.relu(x.t().contiguous()).t(), name="turned")
    Rewriter([turned]).run(graph, ctx)
    assert ops(graph) == ["relu"]
    assert ctx.refusals == {("turned", "the result relu would have other strides"): 1}


def once() -> Any:
    """A check that lets the first match pass only."""
    seen: list[Match] = []

    def check(match: Match) -> bool:
        seen.append(match)
        return len(seen) == 1

    return check


def test_what_was_rewritten_before_a_fault_is_valid() -> None:
    """The first rewrite changes strides, then the second raises."""

    def program(x: Tensor) -> Tensor:
        return torch.relu(torch.exp(x).view(12).sin())

    graph = record(program, x34())
    turned = rule_of(
        lambda x: torch.exp(x), lambda x: torch.exp(x.t().contiguous().t()), name="turned", check=once()
    )
    wrong = rule_of(lambda x: torch.relu(x), raises, name="wrong")
    with pytest.raises(RewriteError, match="no luck"):
        Rewriter([turned, wrong]).run(graph, strict())
    verify(graph)
    assert ops(graph)[:4] == ["t", "contiguous", "t", "exp"] and "relu" in ops(graph)
    assert_equal(run(graph, x34()), [program(x34())])
