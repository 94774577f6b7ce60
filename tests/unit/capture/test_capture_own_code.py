"""Lampwork's own code inside compiled code: unless it is a layer, a call of it runs each time, outside of regions."""

from __future__ import annotations

import importlib
import types

import pytest
import torch

import lampwork
from lampwork import approximation
from lampwork.approximation import Int8Linear
from lampwork.capture.calls.builtins_table import OVERRIDES
from lampwork.capture.calls.ours import is_for_eager, is_made_by_eager

X = torch.ones(2)
PUBLIC = (
    "lampwork",
    *(
        f"lampwork.{name}"
        for name in ("approximation", "config", "inspect", "minifying", "optimizers", "patterns", "placement")
    ),
    *(f"lampwork.{name}" for name in ("swapping", "testing")),
)
# What capture answers itself, and the layers whose methods it interprets. All else breaks the graph.
ANSWERED = {lampwork.graph_break, lampwork.is_compiling}
INTERPRETED = {
    lampwork.swapping.Functional,
    approximation.ChannelAffine,
    approximation.HalfLinear,
    approximation.Int8Conv,
    approximation.Int8Linear,
    approximation.LowRankLinear,
}


def public():
    for home in PUBLIC:
        module = importlib.import_module(home)
        for name in getattr(module, "__all__", None) or vars(module):
            value = getattr(module, name)
            if not name.startswith("_") and isinstance(value, (types.FunctionType, type)):
                if value.__module__.startswith("lampwork"):
                    yield f"{home}.{name}", value


CALLABLES = dict(public())


def methods(cls):
    """The functions of Lampwork that a class has, those in properties and the like among them."""
    for base in cls.__mro__:
        for found in vars(base).values():
            inside = (found, *(getattr(found, name, None) for name in ("fget", "fset", "__func__", "func")))
            for function in inside:
                if isinstance(function, types.FunctionType) and function.__module__.startswith("lampwork"):
                    yield function


def receiver(cls):
    """An object of a class, as far as capture looks at one."""
    return object.__new__(cls) if issubclass(cls, torch.nn.Module) else None


@pytest.mark.parametrize("name", CALLABLES)
def test_all_that_is_public_breaks_the_graph_or_is_known_here(name):
    value = CALLABLES[name]
    if isinstance(value, types.FunctionType):
        assert (value in OVERRIDES) == (value in ANSWERED)
        assert value in OVERRIDES or is_for_eager(value, [X])
        return
    breaks = {is_for_eager(method, [receiver(value)]) for method in methods(value)}
    assert value not in OVERRIDES
    assert is_made_by_eager(value) == (value not in INTERPRETED)
    assert breaks <= {value not in INTERPRETED}


def test_there_are_many_of_them():
    assert len(CALLABLES) > 60 and ANSWERED | INTERPRETED <= set(CALLABLES.values())


def test_a_function_on_a_layer_is_no_method_of_it():
    layer = torch.nn.Linear(2, 2)
    int8 = Int8Linear.__new__(Int8Linear)
    assert is_for_eager(lampwork.approximate, [layer]) and is_for_eager(lampwork.approximate, [int8])
    assert is_for_eager(Int8Linear.forward, [layer]) and not is_for_eager(Int8Linear.forward, [int8])


EXPLANATION = lampwork.explain(torch.sin)(X)


def profile_of(calls):
    with lampwork.profile() as found:
        for _ in range(calls):
            torch.sin(X)
    return found


def made_inside(x):
    with lampwork.profile() as found:
        y = x + 1
    return y, found.table() is not None


PROGRAMS = {
    "text": lambda x: (x + 1, str(EXPLANATION)),
    "formatted": lambda x: (x + 1, f"{EXPLANATION} and {EXPLANATION!r}"),
    "in a list": lambda x: (x + 1, str([EXPLANATION])),
    "compared": lambda x: (x + 1, EXPLANATION == EXPLANATION),
    "an error": lambda x: (x + 1, lampwork.LampworkError("a").args),
    "a profile made inside": made_inside,
    "options": lambda x: (x + 1, lampwork.config.current().mode),
    "a verdict": lambda x: x + 1 if lampwork.Yes else x,
    "an attribute": lambda x: (
        x + 1,
        type(EXPLANATION).__name__,
        isinstance(EXPLANATION, lampwork.Explanation),
    ),
    "an answer": lambda x: x + 1 if lampwork.is_compiling() in (True, False) else x,
}
WITHIN_A_REGION = {"an attribute", "an answer"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_give_what_eager_gives(name):
    program = PROGRAMS[name]
    compiled = lampwork.compile(program)
    for _ in range(3):
        got, expected = compiled(X), program(X)
        assert repr(got) == repr(expected)
    codes = {b.code for b in lampwork.explain(program)(X).breaks}
    assert codes == (set() if name in WITHIN_A_REGION else {"LW103"})


def test_a_file_is_written_on_each_call(tmp_path):
    path = tmp_path / "report.html"
    compiled = lampwork.compile(lambda x: (x + 1, EXPLANATION.save(path)))
    for _ in range(3):
        compiled(X)
        assert path.exists()
        path.unlink()


def test_a_profile_that_is_given_is_read_on_each_call():
    compiled = lampwork.compile(lambda x, profile: (x + 1, profile.table()))
    for calls in (1, 5, 1):
        profile = profile_of(calls)
        assert compiled(X, profile)[1] == profile.table()


def test_a_profile_that_is_given_begins_on_each_call():
    def f(x, profile):
        with profile:
            return x + 1

    compiled = lampwork.compile(f)
    for _ in range(3):
        profile = lampwork.profile()
        compiled(X, profile)
        assert profile.table() is not None
