"""register_backend(name, function, supports=...), and verdicts without parentheses."""

from __future__ import annotations

import pytest
import torch

import lampwork
from lampwork.backends.operators import operators_of
from lampwork.backends.registry import get_backend
from lampwork.errors import OptionError
from lampwork.verdict import as_verdict

aten = torch.ops.aten
X = torch.randn(3, 4)


def fn(x):
    return x.exp().cos().sum(0)


def seen_by(supports, decompose=""):
    """The operators of the parts that a function is given."""
    seen = []

    def mine(gm, example_inputs):
        seen.extend(str(node.target) for node in gm.graph.nodes if node.op == "call_function")
        return gm.forward

    lampwork.register_backend("of-function", mine, supports=supports, decompose=decompose)
    compiled = lampwork.compile(fn, backend=["of-function", "native"], options={"strict": True})
    torch.testing.assert_close(compiled(X), fn(X))
    return seen


@pytest.mark.parametrize(
    "supports",
    [
        [aten.cos.default],
        {aten.cos},
        ("aten.cos",),
        ["cos.default"],
        "aten::cos",
        aten.cos,
        lambda node: node.target is aten.cos.default,
        lambda node: lampwork.Yes if node.target is aten.cos.default else lampwork.No,
    ],
)
def test_only_what_it_supports(supports) -> None:
    assert seen_by(supports) == ["aten.cos.default"]


def test_all_without_supports() -> None:
    assert seen_by(None) == ["aten.exp.default", "aten.cos.default", "aten.sum.dim_IntList"]


def test_a_set_names_its_reason() -> None:
    lampwork.register_backend("of-function", lambda gm, inputs: gm.forward, supports=["cos"])
    plan = lampwork.partition(fn, X, ["of-function"])
    reasons = {(group.op, group.reason) for group in plan.refusals}
    why = "it is not among the operators it was registered for"
    assert reasons == {("exp", why), ("sum", why)}


def test_as_a_decorator() -> None:
    @lampwork.register_backend("decorated", supports=["aten.exp"])
    def mine(gm, example_inputs):
        return gm.forward

    assert callable(mine) and mine.__name__ == "mine"
    assert get_backend("decorated").name == "decorated"


def test_what_is_wrong_is_an_error() -> None:
    def mine(gm, example_inputs):
        return gm.forward

    with pytest.raises(OptionError, match=r"called 'aten.gellu'\s.*did you mean aten.gelu\?"):
        lampwork.register_backend("wrong", mine, supports=["aten.gellu"])
    with pytest.raises(OptionError, match="no operator called 'nowhere.cos'"):
        lampwork.register_backend("wrong", mine, supports=["nowhere.cos"])
    with pytest.raises(OptionError, match="torch.cos.* is no operator"):
        lampwork.register_backend(
            "wrong", mine, supports=["cos", type("T", (), {"__repr__": lambda s: "torch.cos"})()]
        )
    with pytest.raises(OptionError, match="supports is 3"):
        lampwork.register_backend("wrong", mine, supports=3)
    with pytest.raises(OptionError, match="which is no function"):
        lampwork.register_backend("wrong", 3)
    with pytest.raises(OptionError, match="no name for a backend"):
        lampwork.register_backend("Wrong!", mine)
    with pytest.raises(OptionError, match="go with a name and a function"):
        lampwork.register_backend(mine, supports=["cos"])
    with pytest.raises(OptionError, match="decompose is 'all'"):
        lampwork.register_backend("wrong", mine, decompose="all")
    with pytest.raises(OptionError, match="unknown backend 'wrong'"):
        get_backend("wrong")


def test_names_of_operators() -> None:
    assert operators_of(["add.Tensor", "aten.add.Tensor", aten.add.Tensor]) == {aten.add.Tensor}
    assert operators_of(["gelu"]) == {getattr(aten.gelu, name) for name in aten.gelu.overloads()}


def test_names_in_keep_ops() -> None:
    class Keeps:
        name = "keeps"
        keep_ops = ("aten.gelu.default",)

        def supports(self, node):
            return lampwork.No

        def compile(self, graph, example_inputs, options):
            raise AssertionError

    assert lampwork.compile(torch.nn.functional.gelu, backend=[Keeps, "native"])(X).shape == X.shape
    Keeps.keep_ops = ("aten.gellu",)
    with pytest.raises(
        OptionError, match="backend keeps: keep_ops: there is no operator called 'aten.gellu'"
    ):
        lampwork.compile(fn, backend=[Keeps])


def test_verdicts_without_parentheses() -> None:
    assert as_verdict(lampwork.Yes, "why") == as_verdict(True, "why") == lampwork.Yes()
    assert as_verdict(lampwork.No, "why") == as_verdict(False, "why") == lampwork.No("why")
    assert as_verdict(lampwork.No("mine"), "why") == lampwork.No("mine")
    assert as_verdict(None, "why") is None and as_verdict(1, "why") is None
    assert lampwork.Yes and not lampwork.No


def test_a_check_of_a_rewrite_without_parentheses() -> None:
    asked = []

    def check(match):
        asked.append(match)
        return lampwork.No

    item = lampwork.rewrite("sinh(sinh(x))", "cosh(x)", name="never-sinh", check=check)
    try:
        twice = lambda x: x.sinh().sinh()  # noqa: E731
        torch.testing.assert_close(lampwork.compile(twice)(X), twice(X))
        assert asked and item.hits == 0
    finally:
        item.unregister()
