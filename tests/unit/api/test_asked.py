"""What a program asks in its own code: is_compiling, graph_break, allow_in_graph, mark_static, and torch's own."""

from __future__ import annotations

import operator

import pytest
import torch

import lampwork
from lampwork.capture.state import asked
from lampwork.errors import GraphBreakError, OptionError

X = torch.arange(6.0).reshape(2, 3)


# --- is_compiling -----------------------------------------------------------------------------------------------------


def all_that_is_asked(x):
    return (
        x + 1,
        lampwork.is_compiling(),
        torch.compiler.is_compiling(),
        torch.compiler.is_dynamo_compiling(),
        torch.compiler.is_exporting(),
    )


def test_in_a_compiled_function_it_is_so():
    compiled = lampwork.compile(all_that_is_asked, fullgraph=True)
    for _ in range(2):
        assert compiled(X)[1:] == (True, True, True, False)
    assert all_that_is_asked(X)[1:] == (False,) * 4


def test_where_it_runs_eager_it_is_not():
    compiled = lampwork.compile(all_that_is_asked)
    with lampwork.set_stance("force_eager"):
        assert not any(compiled(X)[1:])
    asks = lampwork.disable(all_that_is_asked)
    assert not any(lampwork.compile(lambda x: asks(x * 2))(X)[1:])


def test_torch_itself_hears_that_it_is_not():
    code = compile("def asks(): return torch.compiler.is_dynamo_compiling()", __file__, "exec")
    scope = {"__name__": "torch.nn.something", "torch": torch}
    exec(code, scope)
    assert lampwork.compile(lambda x: (x + 1, scope["asks"]()))(X)[1] is False


# --- graph_break ------------------------------------------------------------------------------------------------------


def broken(x):
    y = x * 2
    lampwork.graph_break("to look at it")
    return y + 1


def broken_by_keyword(x):
    y = x * 2
    lampwork.graph_break(reason="named")
    return y + 1


def broken_as_for_torch(x):
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


@pytest.mark.parametrize(
    "fn, cause",
    [
        (broken, "lampwork.graph_break() (to look at it) asks for a graph break here"),
        (broken_by_keyword, "lampwork.graph_break() (named) asks for a graph break here"),
        (broken_as_for_torch, "torch._dynamo.graph_break() asks for a graph break here"),
    ],
)
def test_a_break_where_one_is_asked_for(fn, cause):
    compiled = lampwork.compile(fn)
    for _ in range(2):
        assert torch.equal(compiled(X), fn(X))
    (entry,) = compiled.entries
    (record,) = entry.breaks
    assert (record.code, record.cause, record.fix) == (
        "LW139",
        cause,
        "remove the call to have both sides in one graph",
    )
    assert len(entry.regions) == 2 and record.line == fn.__code__.co_firstlineno + 2


def test_a_full_graph_has_no_breaks():
    with pytest.raises(GraphBreakError, match="LW139"):
        lampwork.compile(broken, fullgraph=True)(X)


# --- allow_in_graph ---------------------------------------------------------------------------------------------------


def inverted(x):
    return operator.inv(x > 2) | (x < 1)


def test_native_functions_by_a_promise(monkeypatch):
    monkeypatch.setattr(asked, "_allowed", set())
    compiled = lampwork.compile(inverted)
    assert torch.equal(compiled(X), inverted(X)) and compiled.entries[0].breaks[0].code == "LW103"
    assert lampwork.allow_in_graph(operator.inv) is operator.inv
    compiled = lampwork.compile(inverted, fullgraph=True)
    for x in (X, -X):
        assert torch.equal(compiled(x), inverted(x))
    assert "aten.bitwise_not.default" in compiled.entries[0].operators


def test_python_functions_are_compiled_anyway():
    @lampwork.allow_in_graph
    def doubled(x):
        return x * 2

    assert lampwork.compile(lambda x: doubled(x) + 1, fullgraph=True)(X).equal(X * 2 + 1)


def test_calls_of_it_are_breaks():
    compiled = lampwork.compile(lambda x: lampwork.allow_in_graph(torch.relu)(x) + 1)
    assert torch.equal(compiled(X), X + 1) and compiled.entries[0].breaks[0].code == "LW103"


@pytest.mark.parametrize("wrong", [3, torch.nn.Linear])
def test_what_is_no_function(wrong):
    with pytest.raises(OptionError, match=r"allow_in_graph\(\) takes a function, got"):
        lampwork.allow_in_graph(wrong)


# --- mark_static ------------------------------------------------------------------------------------------------------


def tensor(rows, columns):
    return torch.ones(rows, columns)


@pytest.mark.parametrize("mark", [lampwork.mark_static, torch._dynamo.mark_static])
def test_one_dimension_stays_a_number(mark):
    compiled = lampwork.compile(lambda x: x + 1, dynamic=True)
    for rows, columns in ((2, 3), (4, 3), (5, 6)):
        x = tensor(rows, columns)
        mark(x, 1)
        assert torch.equal(compiled(x), x + 1)
    assert [entry.hits for entry in compiled.entries] == [2, 1]


def test_all_dimensions_stay_numbers_from_call_to_call():
    compiled = lampwork.compile(lambda x: x + 1)
    for rows in (2, 3, 4):
        x = tensor(rows, 5)
        lampwork.mark_static(x)
        compiled(x)
    assert len(compiled.entries) == 3
    compiled(tensor(3, 5))
    assert [entry.hits for entry in compiled.entries] == [1, 2, 1]


def test_a_mark_that_leaves_open_is_stronger():
    compiled = lampwork.compile(lambda x: x + 1)
    for rows in (2, 3):
        x = tensor(rows, 5)
        lampwork.mark_static(x, (0, -1))
        lampwork.mark_dynamic(x, 0)
        compiled(x)
    assert len(compiled.entries) == 1


def test_a_dimension_that_is_not_there():
    with pytest.raises(IndexError, match="dimension 2 of a tensor with 2 dimensions"):
        lampwork.mark_static(X.clone(), 2)


# --- torch.compile's options ------------------------------------------------------------------------------------------


def relu_more(x):
    return torch.relu(x) + 1


@pytest.mark.parametrize(
    "keywords",
    [
        {"options": {"strict": True, "fuel": 3}},
        {"mode": "reduce-overhead"},
        {"mode": "default"},
        {"options": {}},
    ],
    ids=str,
)
def test_torch_compile_hands_on(keywords):
    torch._dynamo.reset()
    lampwork.reset_stats()
    assert torch.equal(torch.compile(relu_more, backend="lampwork", **keywords)(X), relu_more(X))
    assert lampwork.stats()["compiled_calls"] == 1


@pytest.mark.parametrize(
    "keywords, fix",
    [
        ({"options": {"strikt": True}}, "did you mean 'strict'?"),
        ({"options": {"strict": 1}}, "pass True or False"),
        ({"mode": "max-autotun"}, "did you mean 'max-autotune'?"),
    ],
)
def test_a_wrong_one_of_torch_compile_is_our_error(keywords, fix):
    torch._dynamo.reset()
    compiled = torch.compile(relu_more, backend="lampwork", **keywords)
    for _ in range(2):
        with pytest.raises(OptionError) as caught:
            compiled(X)
        assert fix in caught.value.fix and caught.value.code == "LW001" and "LW001" in str(caught.value)
