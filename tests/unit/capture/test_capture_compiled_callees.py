"""Functions that are refused run in plain Python, what they call runs compiled."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
import torch.nn as nn

import lampwork
from lampwork.capture.breaks.compiled_callees import compiled_callees, through

X = torch.arange(6.0).reshape(2, 3)


class Asked:
    """Stands for the compiler: notes what is compiled."""

    def __init__(self):
        self.names: list[str] = []

    def compile(self, fn: Any) -> Any:
        self.names.append(getattr(fn, "__name__", type(fn).__name__))
        return fn

    def __call__(self, callee: Any) -> Any:
        return through(self.compile, callee)


def helper(x, k=1):
    return x + k


def other(x, *, k):
    return x * k


def plain():
    return 3


def calls(x):
    y = helper(x, k=2)
    z = other(y, k=plain())
    return helper(*[z], **{"k": 5}), len([y])


def in_handlers(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        x = helper(x, len(str(error)))
    with torch.no_grad():
        x = helper(x)
    return [helper(x, i) for i in range(2)], sorted([3, 1], key=lambda v: -v)


def decorates(x):
    @torch.no_grad()
    def inner(y):
        return helper(y)

    assert inner.__name__ == "inner", inner
    return inner(x)


def with_locals(x):
    y = helper(x)
    return sorted(locals()), y


def generator(x):
    for i in range(3):
        y = yield helper(x, i)
        print(y)


class Thing:
    def __init__(self, k):
        self.k = k

    def scaled(self, x):
        return x * self.k

    def run(self, x):
        return self.scaled(x) + helper(x)


class Child(Thing):
    def run(self, x):
        return super().run(x) + 1


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (calls, ["helper", "plain", "other", "helper"]),
        (
            in_handlers,
            ["helper"] * (2 if sys.version_info < (3, 12) else 4),
        ),  # comprehensions are inlined since
        (decorates, []),
        (with_locals, ["helper"]),
        (Thing(2).run, ["scaled", "helper"]),
        (Child(2).run, ["run"]),
    ],
)
def test_callees_are_asked_for(fn, names):
    asked = Asked()
    made = compiled_callees(fn, asked).call
    assert repr(made(X)) == repr(fn(X))
    assert asked.names == names


def test_generators_are_asked_in_their_body():
    asked = Asked()
    made = compiled_callees(generator, asked).call(X)
    first = next(made)
    assert torch.equal(first, X)
    assert torch.equal(made.send("sent"), X + 1)
    made.close()
    assert asked.names == ["helper", "helper"]


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x


class Outer(nn.Module):
    """Refused: it looks at its own variables."""

    def __init__(self):
        super().__init__()
        self.a, self.b = Inner(), Inner()

    def forward(self, x):
        y = self.a(x)
        names = sorted(locals())
        return self.b(y) * len(names)


def compiled_here(fn):
    lampwork.reset_stats()
    return lampwork.compile(fn, options={"strict": False})


def test_children_of_a_refused_module_are_compiled():
    model = Outer()
    compiled = compiled_here(model)
    with warnings.catch_warnings(record=True) as warned, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
    assert len(warned) == 1
    assert "LW136" in str(warned[0].message)
    assert lampwork.stats()["regions"] == 2


def test_hooks_that_come_later_are_called():
    model = Outer()
    compiled = compiled_here(model)
    seen = []
    with pytest.warns(lampwork.LampworkWarning), torch.no_grad():
        compiled(X)
    handle = model.register_forward_hook(lambda *a: seen.append(1))
    with torch.no_grad():
        compiled(X)
    handle.remove()
    assert seen == [1]


def test_a_generator_function_runs_with_compiled_callees():
    compiled = compiled_here(generator)
    with pytest.warns(lampwork.LampworkWarning, match="LW133"):
        found = list(compiled(X))
    for one, other_ in zip(found, generator(X), strict=True):
        torch.testing.assert_close(one, other_)
    assert lampwork.stats()["regions"] >= 1


class Deep(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.ModuleList([Inner() for _ in range(n)])

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            print("layer", i)
        return x


def test_past_the_limit_layers_stay_compiled(capsys):
    model = Deep(12)
    lampwork.reset_stats()
    compiled = lampwork.compile(model, options={"strict": False, "recompile_limit": 4})
    with pytest.warns(lampwork.LampworkWarning, match="LW140") as warned, torch.no_grad():
        expected = model(X)
        printed = capsys.readouterr().out
        for _ in range(2):
            torch.testing.assert_close(compiled(X), expected)
            assert capsys.readouterr().out == printed
    assert len(warned) == 1
    # Four of the loop body's own, and those of the layers behind them.
    assert lampwork.stats()["regions"] >= 12
