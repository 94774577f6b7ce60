"""The keywords of `lampwork.compile` are those of `torch.compile`: taken with its meaning, or refused by name."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import lampwork
from lampwork.errors import OptionError, RecompileError

X = torch.arange(4.0)


def scaled(x, factor):
    return x * factor + 1


def test_there_is_every_keyword_of_torch_in_its_order():
    theirs = inspect.signature(torch.compile).parameters
    ours = inspect.signature(lampwork.compile).parameters
    assert [*theirs, "unknown"] == list(ours)
    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind, name
        if name != "backend":
            assert ours[name].default == parameter.default, name


@pytest.mark.parametrize("keyword", list(inspect.signature(torch.compile).parameters)[1:])
def test_the_defaults_of_torch_are_taken(keyword):
    default = inspect.signature(torch.compile).parameters[keyword].default
    assert torch.equal(lampwork.compile(scaled, **{keyword: default})(X, 2.0), scaled(X, 2.0))


@pytest.mark.parametrize("make", [lampwork.compile, lampwork.explain])
@pytest.mark.parametrize(
    "keyword, fix",
    [
        ("full_graph", "did you mean 'fullgraph'?"),
        ("recompiles", "the keywords are fullgraph, dynamic,"),
        ("strict", "pass options={'strict': True}"),
        ("optimize", "the keywords are"),
    ],
)
def test_unknown_keywords(make, keyword, fix):
    for models in ((), (scaled,)) if make is lampwork.compile else ((scaled,),):
        with pytest.raises(OptionError, match=f"has no keyword '{keyword}'") as caught:
            make(*models, **{keyword: True})
        assert fix in caught.value.fix


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"name": 3}, "name takes a text, got 3"),
        ({"name": ""}, "name takes a text, got ''"),
        ({"isolate_recompiles": 1}, "isolate_recompiles takes True or False, got 1"),
        ({"recompile_limit": 0}, "option 'recompile_limit' takes a number of versions, 1 or more, got 0"),
        ({"recompile_limit": "8"}, "option 'recompile_limit' takes a number of versions, 1 or more, got '8'"),
        (
            {"recompile_limit": 3, "options": {"recompile_limit": 4}},
            "recompile_limit=3, but option 'recompile_limit' is 4",
        ),
        (
            {"shapes_spec": object()},
            "shapes_spec is not supported: which sizes are open is said of the tensors themselves",
        ),
    ],
)
def test_wrong_values(keywords, message):
    for models in ((), (scaled,)):
        with pytest.raises(OptionError) as caught:
            lampwork.compile(*models, **keywords)
        assert caught.value.cause == message and caught.value.fix


def test_name():
    def breaks(x):
        y = x * 2
        print(end="")
        return y + 1

    compiled = lampwork.compile(breaks, name="my model")
    compiled(X)
    first, rest = (each.name for each in compiled.entries[0].regions)
    assert first == "my model#0" and "breaks_resume" in rest
    assert compiled.__name__ == "breaks"
    module = lampwork.compile(nn.Linear(2, 2), name="head")
    module(torch.ones(1, 2))
    assert module.entries[0].name == "head#0"


def test_the_limit_of_versions(monkeypatch):
    monkeypatch.setenv("LAMPWORK_STRICT", "0")
    for keywords in ({"recompile_limit": 2}, {"options": {"recompile_limit": 2}}):
        compiled = lampwork.compile(scaled, dynamic=False, **keywords)
        with pytest.warns(lampwork.LampworkWarning, match="LW140"):
            for n in range(1, 5):
                assert torch.equal(compiled(X[:n], 2.0), X[:n] * 2 + 1)
        assert len(compiled.entries) == 2


def test_beyond_the_limit_a_full_graph_is_an_error():
    compiled = lampwork.compile(scaled, dynamic=False, fullgraph=True, recompile_limit=1)
    compiled(X, 2.0)
    for _ in range(2):
        with pytest.raises(RecompileError, match="1 versions are compiled, the limit") as caught:
            compiled(X.double(), 2.0)
    assert caught.value.code == "LW140" and caught.value.fix and caught.value.location is not None
    assert torch.equal(compiled(X, 2.0), scaled(X, 2.0)) and len(compiled.entries) == 1


def test_each_compile_has_versions_of_its_own():
    one, two = (
        lampwork.compile(scaled, recompile_limit=1, isolate_recompiles=flag) for flag in (True, False)
    )
    one(X, 2.0)
    assert (len(one.entries), len(two.entries)) == (1, 0)


def test_error_on_recompile():
    compiled = lampwork.compile(scaled, options={"error_on_recompile": True})
    assert torch.equal(compiled(X, 2.0), scaled(X, 2.0))
    with pytest.raises(
        RecompileError, match="which the option error_on_recompile forbids: .*float64"
    ) as caught:
        compiled(X.double(), 2.0)
    assert caught.value.code == "LW151" and "before the option is set" in caught.value.fix
    assert torch.equal(compiled(X, 2.0), scaled(X, 2.0)) and len(compiled.entries) == 1


def test_decorators_of_a_class_body_pass_all_keywords_on():
    class Owner:
        @lampwork.compile(mode="reduce-overhead", name="renamed")
        @staticmethod
        def method(x):
            return x + 1

    assert torch.equal(Owner.method(X), X + 1)
    function = Owner.__dict__["method"].__func__
    assert function.entries[0].name == "renamed#0"
    assert lampwork.api.function_of(function).config.mode == "reduce-overhead"
