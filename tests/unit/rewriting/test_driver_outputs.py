"""Patterns of several outputs: all are replaced at once, or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphkit import assert_same, find, ops, record, run
from torch import Tensor

from lampwork.config import Config
from lampwork.errors import RewriteError
from lampwork.graph.verify import verify
from lampwork.plugins.context import PassContext
from lampwork.rewriting.apply.driver import Rewrite, Rewriter, rule, rule_of

aten = torch.ops.aten


class AddAndSub(Rewrite):
    """
    before:  %a = add(%x, %y), %s = sub(%x, %y)
    after:   %n = neg(%y), %a = sub(%x, %n), %s = add(%x, %n)
    """

    def pattern(self, x: Tensor, y: Tensor) -> Any:
        return torch.exp(x) + y, torch.exp(x) - y

    def replacement(self, x: Tensor, y: Tensor) -> Any:
        minus, power = torch.neg(y), torch.exp(x)
        return torch.ops.aten.rsub.Tensor(minus, power), torch.ops.aten.rsub.Tensor(y, power)


def tensors() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-3, 3, 12, dtype=torch.float64).reshape(3, 4)
    return x, x.flip(0).sin().contiguous()


def rewritten(fn: Any, *rewrites: Any) -> tuple[Any, PassContext]:
    graph, ctx = record(fn, *tensors()), PassContext(Config(strict=True))
    Rewriter(rewrites or (AddAndSub(),)).run(graph, ctx)
    verify(graph)
    torch.testing.assert_close(run(graph, *tensors()), list(fn(*tensors())), rtol=1e-14, atol=1e-14)
    return graph, ctx


def test_both_outputs_are_replaced() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        e = x.exp()
        return (e + y) * 2, (e - y) * 3

    graph, ctx = rewritten(program)
    assert ctx.hits == {"add_and_sub": 1}
    assert sorted(ops(graph)) == ["exp", "mul", "mul", "neg", "rsub", "rsub"]


def test_users_between_the_outputs_are_moved_behind() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        e = x.exp()
        first = ((e + y).sin() * 2).cos()
        other = y.tanh()
        return first, (e - y) * 3, other

    graph, ctx = rewritten(program)
    assert ctx.hits == {"add_and_sub": 1}
    assert ops(graph)[-1] == "mul" and ops(graph).index("sin") > ops(graph).index("rsub")


def test_the_other_order_of_outputs() -> None:
    graph, ctx = rewritten(lambda x, y: ((x.exp() - y).sin(), (x.exp() + y).cos()))
    # The two exp are different nodes here, and one computation.
    assert ctx.hits == {"add_and_sub": 1}
    assert ops(graph).count("rsub") == 2


def test_an_operand_that_needs_an_output_refuses() -> None:
    class Scaled(Rewrite):
        def pattern(self, x: Tensor, y: Tensor) -> Any:
            return torch.exp(x), torch.exp(x) * y

        def replacement(self, x: Tensor, y: Tensor) -> Any:
            power = torch.exp2(x * 1.4426950408889634)
            return power, power * y

    def program(x: Tensor, y: Tensor) -> Any:
        e = x.exp()
        return (e * (e + y)).sin(), e + 1

    before = record(program, *tensors())
    graph, ctx = rewritten(program, Scaled())
    assert not ctx.hits and [reason for _, reason in ctx.refusals] == [
        "add, which the replacement reads, is computed from a result of the match"
    ]
    assert_same(graph, before)


def test_random_numbers_keep_their_order() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        e = x.exp()
        first = torch.nn.functional.dropout(e + y, 0.5, True)
        other = torch.nn.functional.dropout(y, 0.5, True)
        return first, other, e - y

    graph, ctx = record(program, *tensors()), PassContext()
    Rewriter([AddAndSub()]).run(graph, ctx)
    assert not ctx.hits and "cannot be moved" in next(iter(ctx.refusals))[1]


def test_results_of_the_graph_stay_apart() -> None:
    class Same(Rewrite):
        def pattern(self, x: Tensor) -> Any:
            return torch.abs(torch.exp(x)), torch.relu(torch.exp(x))

        def replacement(self, x: Tensor) -> Any:
            power = torch.exp(x)
            return power, power

    inside = lambda x, y: (x.exp().abs() * 2, x.exp().relu() * 3)  # noqa: E731
    graph, ctx = rewritten(inside, Same())
    assert ctx.hits == {"same": 1} and ops(graph) == ["exp", "mul", "mul"]
    outside = lambda x, y: (x.exp().abs(), x.exp().relu())  # noqa: E731
    graph, ctx = rewritten(outside, Same())
    assert not ctx.hits and len(ctx.refusals) == 1


def test_an_output_with_items() -> None:
    class Moments(Rewrite):
        def pattern(self, x: Tensor) -> Any:
            return x.var(1, correction=0), x.mean(1)

        def replacement(self, x: Tensor) -> Any:
            both = torch.ops.aten.var_mean.correction(x, [1], correction=0)
            return both[0], both[1]

    def program(x: Tensor, y: Tensor) -> Any:
        t = x * y
        return t.var(1, correction=0) + 1, t.mean(1) + 2

    graph, ctx = rewritten(program, Moments())
    assert ctx.hits == {"moments": 1}
    assert find(graph, "var_mean") and ops(graph).count("getitem") == 2


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_outputs(count: int) -> None:
    wrong = rule_of(
        lambda x, y: (torch.exp(x) + y, torch.exp(x) - y),
        lambda x, y: tuple(x + y for _ in range(count)),
        name="wrong",
    )
    graph = record(lambda x, y: (x.exp() + y, x.exp() - y), *tensors())
    before = ops(graph)
    with pytest.raises(RewriteError, match=f"its replacement has {count} results?, its pattern 2"):
        Rewriter([wrong]).run(graph, PassContext(Config(strict=True)))
    assert ops(graph) == before
    verify(graph)


def test_priorities() -> None:
    lines = [
        rule("exp(x)", "cos(x)", name="first"),
        rule("exp(x)", "sin(x)", name="second", priority=2),
        rule("exp(x)", "tanh(x)", name="third", priority=2),
    ]
    graph, ctx = record(lambda x, y: x.exp() + y, *tensors()), PassContext()
    Rewriter(lines).run(graph, ctx)
    assert ctx.hits == {"second": 1}


def test_a_replacement_may_be_built_from_the_match() -> None:
    def scaled(match: Any, x: Any) -> Any:
        return x * float(match.spec("x").shape[0])

    def by_hand(match: Any, editor: Any) -> Any:
        return editor.call(aten.mul.Tensor, match["x"], float(match.spec("x").shape[-1]))

    for replacement, factor in ((scaled, 3.0), (by_hand, 4.0)):
        graph, ctx = record(lambda x, y: x.exp() + y, *tensors()), PassContext()
        Rewriter([rule_of(lambda x: torch.exp(x), replacement)]).run(graph, ctx)
        assert ops(graph) == ["mul", "add"] and find(graph, "mul").args[1] == factor
        assert ctx.hits.total() == 1


def test_classes_without_self() -> None:
    class Plain:
        def pattern(x, c: float):  # noqa: N805
            return torch.exp(x) * c

        def replacement(x, c):  # noqa: N805
            return torch.exp(x + c)

        def check(match):  # noqa: N805
            return match["c"] == 2.0

    graph, ctx = record(lambda x, y: x.exp() * 2.0 + y.exp() * 3.0, *tensors()), PassContext()
    Rewriter([Plain]).run(graph, ctx)
    assert ctx.hits == {"plain": 1} and ops(graph).count("mul") == 1
