"""`lampwork.why_not` and `lampwork.rewrites`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import lampwork
from lampwork import No
from lampwork.errors import OptionError
from lampwork.plugins.registry import registry
from lampwork.rewriting.algebra import algebra_rules
from lampwork.rewriting.library.pairs import pair_rules
from lampwork.rewriting.library.table import library_rules
from lampwork.rewriting.padding import padding_rules
from lampwork.rewriting.views import view_rules
from lampwork.transforms.pipeline import tree_rules


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing stays registered."""
    yield
    for item in registry().all():
        item.unregister()


X = torch.randn(3, 4)


def tanh_of_scaled(x: Tensor) -> Tensor:
    return torch.tanh(torch.sin(x) * 2.0) + 1


class Scaled:
    def pattern(x: Tensor, c: float):
        return torch.tanh(torch.cos(x) * c)

    def replacement(x, c):
        return torch.tanh(c * torch.cos(x))


def test_where_it_fired() -> None:
    mine = lampwork.rewrite("tanh(mul(sin(x), 2.0))", "tanh(add(sin(x), sin(x)))", name="mine")
    compiled = lampwork.compile(tanh_of_scaled)
    assert "has no compiled version yet: call it once" in str(lampwork.why_not(mine, compiled))
    compiled(X)
    found = lampwork.why_not(mine, compiled)
    assert found.fired == 1
    (answer,) = found.answers
    line = tanh_of_scaled.__code__.co_firstlineno + 1
    assert answer.fired[0].location.line == line
    assert f"it fired 1 time\n    at tanh, {__file__}:{line}" in str(found)
    assert mine.hits == 1, "asking does not count"


def test_the_nearest_miss_is_shown() -> None:
    lampwork.rewrite(Scaled)
    compiled = lampwork.compile(tanh_of_scaled)
    compiled(X)
    text = str(lampwork.why_not(Scaled, compiled))
    assert "it did not fire\n    nearest, 2 nodes of the pattern found, at " in text
    assert "expected cos, got sin" in text
    assert f"{__file__}:{tanh_of_scaled.__code__.co_firstlineno + 1}" in text


def test_nothing_like_it() -> None:
    mine = lampwork.rewrite("erf(erf(x))", "erf(x)", name="mine")
    compiled = lampwork.compile(tanh_of_scaled)
    compiled(X)
    assert "nothing in the graph looks like the last operator" in str(lampwork.why_not(mine, compiled))


def test_a_check_that_refuses_is_quoted() -> None:
    def check(match):
        return No(f"only float64, not {match.spec('x').dtype}")

    mine = lampwork.rewrite("tanh(mul(sin(x), 2.0))", "sin(x)", name="mine", check=check)
    compiled = lampwork.compile(tanh_of_scaled)
    compiled(X)
    text = str(lampwork.why_not("mine", compiled))
    assert "it matched, but was not applied, at tanh" in text and "only float64, not torch.float32" in text
    assert mine.refused >= 1 and lampwork.why_not(mine, compiled).fired == 0


@pytest.mark.parametrize("how", ["disabled", "rewrite", "pass"])
def test_what_is_off_says_so(how: str) -> None:
    mine = lampwork.rewrite("tanh(mul(sin(x), 2.0))", "tanh(add(sin(x), sin(x)))", name="mine")
    passes = {"disabled": "", "rewrite": "-mine", "pass": "-rewrites"}[how]
    compiled = lampwork.compile(tanh_of_scaled, options={"passes": passes})
    if how == "disabled":
        mine.disable()
    compiled(X)
    text = str(lampwork.why_not(mine, compiled))
    want = {"disabled": "it is disabled", "rewrite": "switches mine off", "pass": "switches rewrites off"}[
        how
    ]
    assert "it did not run, " in text and want in text and "it would fire 1 time" in text
    mine.unregister()
    compiled(X)
    assert "it is no longer registered" in str(lampwork.why_not(mine, compiled))


def test_rewrites_of_the_tree_are_asked_by_name() -> None:
    compiled = lampwork.compile(lambda x: -(-x.exp()))
    compiled(X)
    assert lampwork.why_not("neg(neg(x)) -> x", compiled).fired == 1
    with pytest.raises(OptionError, match="no rewrite is called 'nothing'"):
        lampwork.why_not("nothing", compiled)
    with pytest.raises(TypeError, match="was not made by lampwork.compile"):
        lampwork.why_not("neg(neg(x)) -> x", torch.relu)


def test_a_name_is_one_rule() -> None:
    rules = (*algebra_rules(), *view_rules(), *padding_rules(), *library_rules(), *pair_rules())
    assert len(tree_rules()) == len(rules)


@pytest.mark.parametrize("layer", [torch.nn.Linear(4, 4), torch.nn.Conv1d(3, 3, 1), torch.nn.Conv2d(3, 3, 1)])
@pytest.mark.parametrize("scale", [lambda y: y * 3.0, lambda y: y / 3.0])
def test_all_forms_of_a_rewrite_are_asked(layer: torch.nn.Module, scale: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(1, 3, 4, 4) if isinstance(layer, torch.nn.Conv2d) else X
    layer.requires_grad_(False)
    compiled = lampwork.compile(lambda x: scale(layer(x)))
    compiled(x)
    assert lampwork.why_not("scale_behind_layer", compiled).fired == 1
    compiled = lampwork.compile(lambda x: scale(layer(x)) + layer(x + 1))
    compiled(x)
    assert "weight has other readers" in str(lampwork.why_not("scale_behind_layer", compiled))
    compiled = lampwork.compile(lambda x: scale(layer(x).abs()))
    compiled(x)
    assert "got abs (float32" in str(lampwork.why_not("scale_behind_layer", compiled).answers[0].nearest)


def test_versions_behind_graph_breaks_are_looked_at() -> None:
    mine = lampwork.rewrite("tanh(mul(sin(x), 2.0))", "tanh(add(sin(x), sin(x)))", name="mine")

    def program(x: Tensor) -> Tensor:
        y = x + 1
        print(end="")
        return tanh_of_scaled(y)

    compiled = lampwork.compile(program)
    compiled(X)
    found = lampwork.why_not(mine, compiled)
    assert [len(a.fired) for a in found.answers] == [0, 1]


def test_the_table_of_rewrites() -> None:
    assert str(lampwork.rewrites()) == "nothing is registered"
    lampwork.rewrite("tanh(mul(sin(x), 2.0))", "tanh(add(sin(x), sin(x)))", name="mine")
    idle = lampwork.rewrite("erf(erf(x))", "erf(x)", name="idle", after="algebra", enabled=False)
    lampwork.register_pass(lambda graph, ctx: None, name="nothing", before="library")
    lampwork.compile(tanh_of_scaled)(X)
    table = lampwork.rewrites()
    assert [(r.name, r.kind, r.place, r.enabled, r.hits) for r in table] == [
        ("mine", "rewrite", "rewrites", True, 1),
        ("idle", "rewrite", "after algebra", False, 0),
        ("nothing", "pass", "before library", True, 0),
    ]
    assert [r.name for r in table.never_fired] == ["idle", "nothing"]
    assert str(table).splitlines()[0].split() == "name kind place on hits refused hash source".split()
    found = json.loads(table.to_json())
    assert found[1]["hash"] == idle.hash[:12] and found[0]["source"].startswith(__file__)
    everything = {row.name: row for row in lampwork.rewrites(all=True)}
    assert "neg(neg(x)) -> x" in everything and len(everything) > 50
    before = everything["neg(neg(x)) -> x"].hits
    lampwork.compile(lambda x: -(-x.exp()))(X)
    assert {r.name: r.hits for r in lampwork.rewrites(all=True)}["neg(neg(x)) -> x"] == before + 1


def test_no_version_to_look_at() -> None:
    mine = lampwork.rewrite("tanh(mul(sin(x), 2.0))", "tanh(add(sin(x), sin(x)))", name="mine")
    compiled = lampwork.compile(tanh_of_scaled)
    compiled(X)
    other = lampwork.rewrite("neg(neg(x))", "x", name="other")
    assert "with the rewrites and passes that are on now: call it once" in str(
        lampwork.why_not(mine, compiled)
    )
    mine.unregister()
    assert "it is no longer registered: register it again" in str(lampwork.why_not(mine, compiled))
    numbers = lampwork.compile(lambda n: n + 1, dynamic=False)
    numbers(3)
    assert "has a graph" in str(lampwork.why_not(other, numbers))
