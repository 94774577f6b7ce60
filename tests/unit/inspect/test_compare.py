"""compare(): each column on its own, what it says of each, and that it leaves everything as it was."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import lampwork
from lampwork.backends.eager import EagerBackend
from lampwork.errors import OptionError

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).eval().requires_grad_(False)


def compare(model, columns, inputs=X):
    return lampwork.compare(model, columns, inputs, seconds=0)


def test_columns_of_all_kinds():
    model = network()
    ready = lampwork.compile(model)
    found = compare(
        model,
        {
            "none": None,
            "eager": "eager",
            "name": "native",
            "backend": EagerBackend(),
            "list": [EagerBackend(), "native"],
            "keywords": {"backend": "native", "options": {"isa": "avx2"}},
            "ready": ready,
            "another": network(),
            "mine": lambda m: lambda x: m(x),
        },
    )
    assert [c.failure for c in found.columns] == [""] * 9
    assert found.reference == "float64" and found.rounds == 5 and not found["none"].note
    for column in found.columns:
        assert column.seconds > 0 and column.first_call > 0 and column.speedup > 0 and column.noise >= 0
        assert 0 < column.error < 1e-5
    assert found["none"].speedup == 1 and found["ready"].peak_bytes is not None
    assert ready.entries[0].hits > 5


def test_a_column_that_fails_says_so_and_the_others_go_on():
    calls = []

    def later(model):
        def call(x):
            calls.append(x)
            if len(calls) > 8:
                raise RuntimeError("worn out")
            return model(x)

        return call

    def broken(model):
        raise ValueError("no such thing")

    found = compare(
        network(),
        {"eager": None, "broken": broken, "no call": lambda m: 3, "no name": "nativ", "later": later},
    )
    assert found["eager"].seconds > 0
    assert found["broken"].failure == "ValueError: no such thing"
    assert "it made int of the model, which cannot be called" in found["no call"].failure
    assert "did you mean 'native'?" in found["no name"].failure
    assert found["later"].failure == "RuntimeError: worn out" and math.isnan(found["later"].seconds)
    assert "broken failed: ValueError: no such thing" in str(found)


def test_if_the_first_fails_there_are_no_ratios():
    def broken(model):
        raise ValueError("no")

    found = compare(network(), {"broken": broken, "eager": None})
    assert math.isnan(found["eager"].speedup) and found["eager"].seconds > 0 and " -  " in str(found)


def test_wrong_results_show():
    found = compare(
        network(),
        {"eager": None, "wrong": lambda m: lambda x: m(x) * 1.5, "other": lambda m: lambda x: x[1:]},
    )
    assert found["eager"].error < 1e-5 and found["wrong"].error == pytest.approx(0.5, rel=1e-3)
    assert found["other"].error == math.inf


def test_a_callable_may_change_the_model_it_gets():
    model = network()

    def narrow(m):
        halved = m.bfloat16()
        return lambda x: halved(x.bfloat16())

    found = compare(model, {"bf16": narrow, "eager": None})
    assert model[0].weight.dtype == torch.float32 and 1e-4 < found["bf16"].error < 0.1
    assert found["eager"].error < 1e-5


class Counting(nn.Module):
    """Writes into its argument and its buffer, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        self.count.add_(1)
        x.add_(1)
        return self.drop(x) * self.count


def test_everything_is_as_it_was():
    model, x, before = Counting().train(), X.clone(), torch.get_rng_state()
    found = compare(model, {"eager": None, "compiled": {}, "again": lambda m: m}, x)
    assert torch.equal(x, X) and model.count == 0 and torch.equal(torch.get_rng_state(), before)
    assert max(c.error for c in found.columns) < 1e-6, str(found)


def test_what_does_not_run_compiled_is_noted():
    def breaks(x):
        print("", end="")
        return x + 1

    def numbers(x):
        yield x

    assert compare(breaks, {"compiled": {}})["compiled"].note == "1 graph break"
    quiet = {"options": {"strict": False}}
    with pytest.warns(lampwork.LampworkWarning):
        found = compare(numbers, {"compiled": quiet})
    assert "ran eager: [LW133]" in found["compiled"].note and math.isnan(found["compiled"].error)


def test_a_model_that_is_no_float64():
    def typed(x):
        return x @ torch.ones(8, 2)

    found = compare(typed, {"eager": None})
    assert found.reference == "eager" and found["eager"].error == 0
    assert "error against eager" in str(found)


def test_arguments_and_grad_mode():
    def f(x, scale=2.0):
        return {"y": x * scale}

    found = compare(f, {"eager": None}, {"x": X, "scale": 3.0})
    assert found.grad and "gradients on" in str(found) and found["eager"].error < 1e-6
    with torch.no_grad():
        assert "gradients off" in str(compare(f, {"eager": None}, (X, 4.0)))


def test_as_data_and_as_a_view():
    found = compare(network(), {"eager": None, "<b>": {}})
    data = json.loads(json.dumps(found.to_dict()))
    assert [c["name"] for c in data["columns"]] == ["eager", "<b>"] and data["reference"] == "float64"
    assert "&lt;b&gt;" in found._repr_html_() and len(repr(found)) <= 200 and len(repr(found["<b>"])) <= 200
    with pytest.raises(KeyError, match="the columns are eager, <b>"):
        found["lampwork"]


@pytest.mark.parametrize(
    "columns, seconds, text",
    [
        ({}, 0, "takes a mapping of names"),
        (["eager"], 0, "takes a mapping of names"),
        ({1: None}, 0, "1 is no name of a column"),
        ({"a": 3}, 0, "column 'a' is 3, which is no way to run a model"),
        ({"a": None}, -1, "seconds is -1"),
        ({"a": None}, "1", "seconds is '1'"),
    ],
)
def test_wrong_arguments(columns, seconds, text):
    with pytest.raises(OptionError, match=text):
        lampwork.compare(network(), columns, X, seconds=seconds)


def test_no_model():
    with pytest.raises(OptionError, match=r"compare\(\) takes a function or a module, got int"):
        compare(3, {"eager": None})
