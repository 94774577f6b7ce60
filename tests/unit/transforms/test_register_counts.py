"""What `hits` counts: what a rewrite or pass changed and what stayed so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import lampwork
from lampwork.errors import LampworkError, LampworkWarning, OptionError, PluginPassError
from lampwork.plugins.context import PassContext
from lampwork.plugins.registry import registry
from lampwork.rewriting.apply.edit import replace

aten = torch.ops.aten
X = torch.randn(3, 4)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing stays registered."""
    yield
    for item in registry().all():
        item.unregister()


def program(x: Tensor) -> Tensor:
    return torch.tanh(torch.sin(x)) * 2


def compiled(**options: Any) -> Any:
    return lampwork.compile(program, backend="eager", options={"strict": False, **options})


def good() -> Any:
    return lampwork.rewrite("mul(x, 2)", "add(x, x)", name="good")


def wrong_pass(graph: fx.Graph, ctx: PassContext) -> None:
    """Counts its change itself, and changes what the graph computes."""
    for node in list(graph.nodes):
        if node.target is aten.tanh.default and ctx.spend("wrong-pass", node):
            replace(graph, node, node.args[0])


def test_a_pass_that_verification_undoes_is_no_hit() -> None:
    item, stays = lampwork.register_pass(wrong_pass), good()
    with pytest.warns(LampworkWarning, match="goes on without it: .LW303.*wrong-pass"):
        assert torch.allclose(compiled(verify="numeric")(X), program(X))
    assert (item.hits, stays.hits) == (0, 1)


def test_rewrites_in_a_pass_that_verification_undoes_are_none() -> None:
    """Each rewrite is right by itself, as far as samples tell; the pass that a user wrote beside them is not."""
    inside = lampwork.rewrite(
        "sin(x)", "neg(sin(neg(x)))", name="inside", check=lambda m: m["x"].op == "placeholder"
    )
    lampwork.sequence("both", [inside, wrong_pass])
    with pytest.warns(LampworkWarning, match="goes on without it: .LW303.*both"):
        assert torch.allclose(compiled(verify="numeric")(X), program(X))
    assert inside.hits == 0


def test_a_rewrite_that_verification_refuses_is_none() -> None:
    item, stays = lampwork.rewrite("tanh(x)", "mul(x, 0.9)", name="wrong"), good()
    with pytest.warns(LampworkWarning, match="goes on without it: .LW311"):
        compiled(verify="numeric")(X)
    assert (item.hits, stays.hits) == (0, 1)


@pytest.mark.parametrize(
    "texts", [[("tanh(x)", "cos(x)"), ("cos(x)", "tanh(x)")], [("tanh(x)", "tanh(sin(x))")]]
)
def test_rewrites_without_end_are_none(texts: list[tuple[str, str]]) -> None:
    items, stays = [lampwork.rewrite(*pair) for pair in texts], good()
    with pytest.warns(LampworkWarning, match="not come to an end"):
        assert torch.allclose(compiled()(X), program(X))
    assert [item.hits for item in items] == [0] * len(texts) and stays.hits == 1


def test_a_compilation_that_fails_counts_nothing() -> None:
    def raising(graph: fx.Graph, ctx: PassContext) -> None:
        raise ValueError("no")

    stays = good()
    lampwork.register_pass(raising, after="algebra")
    with pytest.raises(PluginPassError):
        compiled(strict=True)(X)
    assert stays.hits == 0
    with pytest.warns(LampworkWarning, match="raising"):
        compiled()(X)
    assert stays.hits == 1


def test_a_question_counts_nothing() -> None:
    stays, asked = good(), compiled()
    asked(X)
    assert lampwork.why_not(stays, asked).fired == 1
    assert stays.hits == 1


def test_rewrites_of_the_tree_count_too() -> None:
    def tally() -> int:
        return next(row.hits for row in lampwork.rewrites(all=True) if row.name == "neg(neg(x)) -> x")

    before = tally()
    lampwork.compile(lambda x: -(-x.sin()), backend="eager")(X)
    assert tally() == before + 1


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_rewrite_that_fires_on_its_own_result_is_told_so() -> None:
    lampwork.rewrite("tanh(x)", "tanh(sin(x))", name="again")
    with pytest.raises(
        LampworkError, match="again does not come to an end: it fires on what it made"
    ) as raised:
        compiled(strict=True)(X)
    assert "in which its pattern is not found" in raised.value.fix and "direction" not in str(raised.value)


def test_what_was_unregistered_cannot_be_enabled() -> None:
    first = good()
    first.unregister()
    first.disable()
    with pytest.raises(
        OptionError, match="the rewrite good has been unregistered, so it cannot be enabled"
    ) as raised:
        first.enable()
    assert "register it again" in raised.value.fix
    second, third = good(), good()
    with pytest.raises(OptionError, match="good was replaced by another of its name"):
        second.enable()
    third.enable()


def test_a_pass_that_returns_a_graph_is_told_to_change_its_own() -> None:
    @lampwork.register_pass
    def copies(graph: fx.Graph, ctx: PassContext) -> fx.Graph:
        return fx.Graph()

    with pytest.raises(PluginPassError, match="copies .*returned a new graph.*\n.*\n  fix: change the graph"):
        compiled(strict=True)(X)


def test_a_pass_may_do_nothing() -> None:
    item = lampwork.register_pass(lambda graph, ctx: None)
    assert torch.allclose(compiled(strict=True)(X), program(X))
    assert item.hits == 0 and item.name.startswith("test_register_counts.py:")
