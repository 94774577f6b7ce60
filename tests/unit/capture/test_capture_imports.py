"""`import` in a function finds what `sys.modules` has on each call, by the `__import__` of that call."""

from __future__ import annotations

import builtins
import sys
import types

import pytest
import torch

import lampwork

X = torch.ones(2)


def plain(x):
    import held_module

    return x * held_module.k


def dotted(x):
    import held_module.inner

    return x * held_module.inner.k


def renamed(x):
    import held_module.inner as inner

    return x * inner.k


def named(x):
    from held_module import k

    return x * k


def submodule(x):
    from held_module import inner

    return x * inner.k


def only_in_table(x):
    from held_module import aside

    return x * aside.k


def missing_name(x):
    try:
        from held_module import nothing  # noqa: F401
    except ImportError as error:
        return x * 2, str(error), error.name, error.path
    return x


def relative(x):
    from . import inner

    return x * inner.k


relative = types.FunctionType(
    relative.__code__, {"__package__": "held_module", "__name__": "held_module.b", "__builtins__": builtins}
)
PROGRAMS = (plain, dotted, renamed, named, submodule, only_in_table, missing_name, relative)


def install(put, k):
    """A package, its submodule, and one that only `sys.modules` knows."""
    package = types.ModuleType("held_module")
    package.__path__ = []
    package.k = k
    for name in ("inner", "aside"):
        module = types.ModuleType(f"held_module.{name}")
        module.k = 10 * k
        put(sys.modules, module.__name__, module)
    package.inner = sys.modules["held_module.inner"]
    put(sys.modules, "held_module", package)


def outcome(f):
    try:
        result = f(X)
    except ImportError as error:
        return str(error)
    return [
        v.tolist() if isinstance(v, torch.Tensor) else v
        for v in (result if type(result) is tuple else (result,))
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_module_that_is_replaced_is_found(program, monkeypatch):
    install(monkeypatch.setitem, 2.0)
    compiled = lampwork.compile(program)
    assert outcome(compiled) == outcome(program)
    install(monkeypatch.setitem, 7.0)
    assert outcome(compiled) == outcome(program)


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_module_that_is_gone_is_not_found(program, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")
    install(monkeypatch.setitem, 2.0)
    compiled = lampwork.compile(program)
    outcome(compiled)
    for name in ("held_module.aside", "held_module.inner", "held_module"):
        monkeypatch.delitem(sys.modules, name)
        assert outcome(compiled) == outcome(program)


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
@pytest.mark.parametrize("first", [False, True], ids=["after the first call", "before it"])
def test_an_import_of_the_programs_own_is_called(first, monkeypatch):
    monkeypatch.delenv("LAMPWORK_STRICT")

    def f(x):
        import math

        return x * math.pi

    compiled, asked, real = lampwork.compile(f), [], builtins.__import__
    if not first:
        compiled(X)

    def note(name, *args):
        asked.append(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", note)
    f(X)
    expected = list(asked)
    for _ in range(2):
        asked.clear()
        compiled(X)
        assert [name for name in asked if name == "math"] == expected


def test_a_module_that_the_function_puts_there_itself_is_found(monkeypatch):
    install(monkeypatch.setitem, 2.0)
    other = types.ModuleType("held_module")
    other.k = 5.0

    def f(x, module):
        sys.modules["held_module"] = module
        import held_module

        return x * held_module.k

    assert torch.equal(lampwork.compile(f)(X, other), X * 5)
    assert sys.modules["held_module"] is other
