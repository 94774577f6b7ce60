"""Symbolic ints: what is decided for all values, what becomes a condition, and graphs recorded with them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from lampwork.errors import Location
from lampwork.graph import symbols
from lampwork.graph.concrete import concrete_graph, has_symbols
from lampwork.graph.interpret import run_graph
from lampwork.graph.record import Recorder
from lampwork.graph.spec import TensorSpec
from lampwork.graph.symbols import Scope, SymbolicFloat, SymbolicInt
from lampwork.graph.symnode import symint
from lampwork.graph.verify import verify
from lampwork.loops.ir.polynomial import Index
from lampwork.loops.ir.symbols import evaluate, lower_bound, replace_symbols


def texts(scope: Scope) -> list[str]:
    return [str(condition) for condition in scope.conditions]


def test_what_holds_for_all_sizes_needs_no_condition() -> None:
    scope = Scope()
    s, t = scope.symbol(8), scope.symbol(5)
    assert s * 3 // 3 == s and (s + t) - t == s and s != 1 and s > 0 and s * t >= 4 and s // 2 >= 1
    assert not (s == 0 or s < 2 or s * 2 == 7) and -s < 0 and max(s, 1) is s and s <= 2**63 - 1
    assert scope.conditions == []


def test_what_depends_becomes_a_condition_once() -> None:
    scope = Scope()
    s, t = scope.symbol(8), scope.symbol(5)
    assert s > 4 and s > 4 and not s == t and s != t and not s < t and s % 4 == 0
    assert texts(scope) == ["s0 >= 5", "s1 != s0", "s0 >= s1", "s0%4 == 0"]
    assert all(condition.holds({"s0": 8, "s1": 5}) for condition in scope.conditions)
    assert not all(condition.holds({"s0": 9, "s1": 5}) for condition in scope.conditions)


def test_conditions_say_where_they_come_from() -> None:
    scope = Scope()
    scope.where = lambda: Location("model.py", 7)
    assert scope.symbol(8) > 4
    assert scope.conditions[0].line == Location("model.py", 7)


def test_what_needs_the_number_fixes_it() -> None:
    for use in (
        int,
        range,
        lambda n: [0] * n,
        float,
        lambda n: "abcdefghij"[n],
    ):
        scope = Scope()
        use(scope.symbol(8))
        assert texts(scope) == ["s0 == 8"]


def test_floats_are_computed_when_the_sizes_are_known() -> None:
    scope = Scope()
    half = scope.symbol(8) / 2
    number = 1.0 / (half + 0.5) ** 2
    assert isinstance(number, SymbolicFloat) and number.hint == 1 / 4.5**2
    assert number.evaluate({"s0": 3}) == 1.0 / (3 / 2 + 0.5) ** 2
    assert scope.conditions == []
    assert number < 1
    assert texts(scope) == ["s0 == 8"]


def test_equal_symbols_become_one() -> None:
    scope = Scope()
    s, t, u = scope.symbol(8), scope.symbol(8), scope.symbol(16)
    assert s == t and s * 2 == u
    assert texts(scope) == ["s1 == s0", "s2 == 2*s0"]
    assert str(scope.canonical((t * 3 + u).index)) == "5*s0"
    assert t * 2 == u and len(scope.conditions) == 2


def test_what_is_known_of_a_symbol_reaches_those_solved_by_it() -> None:
    scope = Scope()
    s, t, u, v = (scope.symbol(hint) for hint in (4, 8, 9, 17))
    assert v == t + u and u == t + 1 and t == s * 2
    assert str(scope.canonical(v.index)) == "4*s0 + 1"
    assert s == 4
    assert [str(scope.canonical(n.index)) for n in (s, t, u, v)] == ["4", "8", "9", "17"]


def test_fixing_a_symbol_leaves_what_is_known_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten: list[Index] = []

    def replaced(index: Index, mapping: Mapping[str, Index]) -> Index:
        rewritten.append(index)
        return replace_symbols(index, mapping)

    scope = Scope()
    numbers = [scope.symbol(hint) for hint in range(2, 302)]
    monkeypatch.setattr(symbols, "replace_symbols", replaced)
    assert [int(n) for n in numbers] == list(range(2, 302))
    assert len(rewritten) <= 2 * len(numbers)


def test_a_number_below_one_is_conditioned_before_it_is_an_index() -> None:
    scope = Scope()
    n = scope.symbol(3, lowest=None)
    assert n >= 0
    assert texts(scope) == ["s0 >= 0"]
    n.as_index()
    assert texts(scope) == ["s0 >= 0", "s0 >= 1"]


def test_symbols_of_other_scopes_are_never_equal() -> None:
    assert Scope().symbol(8) != Scope().symbol(8)


def test_torch_sees_a_symint() -> None:
    scope = Scope()
    s = scope.symbol(8)
    number = symint(s)
    assert isinstance(number, torch.SymInt) and SymbolicInt.of(number * 2 + 1) == s * 2 + 1
    assert (number == 8) is True and texts(scope) == ["s0 == 8"]


@pytest.mark.parametrize("text", ["s0", "s0*s1", "s0//2", "(s0 + 3)//4", "s0*s1//2 + s1%3"])
def test_evaluate_replace_and_bounds(text: str) -> None:
    names = {"s0": Index.sym("s0"), "s1": Index.sym("s1")}
    index = eval(text, {}, names)  # the texts above
    for a in (2, 3, 8, 13):
        for b in (2, 5):
            values = {"s0": a, "s1": b}
            want = eval(text, {}, values)
            assert evaluate(index, values) == want
            assert replace_symbols(index, {k: Index.const(v) for k, v in values.items()}).as_int() == want
            bound = lower_bound(index, {"s0": 2, "s1": 2})
            assert bound is not None and bound <= want


def _block(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    b, t, _ = x.shape
    q = (x @ weight).view(b, t, 4, 8).transpose(1, 2)
    scores = q @ q.transpose(-1, -2) / 8**0.5
    causal = torch.arange(t)[None, :] <= torch.arange(t)[:, None]
    scores = scores.masked_fill(~causal, float("-inf")).softmax(-1)
    y = (scores @ q).transpose(1, 2).reshape(b, t, 32)
    return [
        y,
        y.mean(1),
        y[:, : t // 2],
        torch.cat([y, y], 1),
        x.sum(1) / t,
        x * t,
        y[:, -1],
        y.flatten(0, 1),
    ]


def test_an_attention_block_is_recorded_for_all_sizes() -> None:
    x, weight = torch.randn(4, 6, 16), torch.randn(16, 32)
    with torch.no_grad(), Recorder() as rec:
        b, t = rec.scope.symbol(4), rec.scope.symbol(6)
        spec = TensorSpec((b, t, 16), (t * 16, 16, 1), x.dtype, x.device)
        traced = rec.input(x, "x", spec=spec)
        outputs = _block(traced, rec.input(weight, "weight"))  # pyright: ignore
        recorded = rec.finish(outputs)  # pyright: ignore
    verify(recorded.graph)
    assert has_symbols(recorded.graph)
    for sizes in ((4, 6), (3, 7), (2, 11), (5, 2), (6, 6)):
        values = {"s0": sizes[0], "s1": sizes[1]}
        assert all(condition.holds(values) for condition in rec.scope.conditions)
        graph = concrete_graph(recorded.graph, values)
        verify(graph)
        assert not has_symbols(graph)
        x = torch.randn(*sizes, 16)
        for got, want in zip(run_graph(graph, [x, weight]), _block(x, weight), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()
