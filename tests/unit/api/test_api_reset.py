"""reset() and reset_stats(): what was compiled is forgotten, of all functions or of one, while others call it too."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import lampwork
from lampwork.api import function_of
from lampwork.errors import OptionError

X = torch.arange(6.0).reshape(2, 3)


def scaled(x, factor=2.0):
    return x * factor


def breaking(x):
    y = x * 2
    print(end="")
    return y + 1


def test_stats_alone():
    compiled = lampwork.compile(scaled)
    compiled(X)
    lampwork.reset_stats()
    assert not any(lampwork.stats().values())
    compiled(X)
    assert (lampwork.stats()["regions"], lampwork.stats()["compiled_calls"], len(compiled.entries)) == (
        0,
        1,
        1,
    )


def test_all_functions_and_the_counters():
    fn, module = lampwork.compile(scaled), lampwork.compile(nn.Linear(3, 2))
    fn(X), module(X)
    lampwork.reset()
    assert not any(lampwork.stats().values())
    for compiled in (fn, module):
        assert compiled.entries == () and list(compiled.stages) == []
    assert torch.equal(fn(X), X * 2)
    module(X)
    assert lampwork.stats()["regions"] == 2 and len(fn.entries) == len(module.entries) == 1


def test_one_function():
    one, two = lampwork.compile(scaled), lampwork.compile(scaled)
    one(X), two(X)
    lampwork.reset_stats()
    lampwork.reset(one)
    assert one.entries == () and len(two.entries) == 1
    one(X), two(X)
    assert lampwork.stats()["regions"] == 1 and lampwork.stats()["compiled_calls"] == 2


def test_a_method():
    class Owner:
        @lampwork.compile
        def method(self, x):
            return x + 1

    owner = Owner()
    owner.method(X)
    lampwork.reset(owner.method)
    assert Owner.method.entries == ()


def test_functions_behind_breaks_too():
    compiled = lampwork.compile(breaking)
    compiled(X)
    names = [each.name for each in compiled.entries[0].regions]
    gone = [weakref.ref(each) for each in compiled.entries[0].regions]
    lampwork.reset(compiled)
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert torch.equal(compiled(X), X * 2 + 1)
    assert [each.name for each in compiled.entries[0].regions] == names


def test_what_was_seen_is_forgotten():
    compiled = lampwork.compile(scaled, options={"recompile_limit": 2})
    for n in (2, 3):
        compiled(torch.ones(n))
    assert len(compiled.entries) == 2 and len(function_of(compiled).recompiles) == 1
    lampwork.reset(compiled)
    assert not function_of(compiled).records
    compiled(torch.ones(4))
    # One size is no reason to leave it open.
    assert "float32[4]" in str(compiled.entries[0].guards)


def test_a_refused_function_is_tried_again(monkeypatch):
    monkeypatch.setenv("LAMPWORK_STRICT", "0")

    def f(x):
        yield x

    compiled = lampwork.compile(f)
    for _ in range(2):
        with pytest.warns(lampwork.LampworkWarning):
            list(compiled(X))
        assert function_of(compiled).refused
        lampwork.reset(compiled)
        assert not function_of(compiled).refused


def test_versions_that_modules_among_the_arguments_hold():
    compiled, module = lampwork.compile(lambda m, x: m(x)), nn.Linear(3, 2)
    compiled(module, X)
    (entry,) = compiled.entries
    gone = weakref.ref(entry)
    del entry
    lampwork.reset(compiled)
    gc.collect()
    assert gone() is None and len(compiled.entries) == 0
    torch.testing.assert_close(compiled(module, X), module(X))
    assert len(compiled.entries) == 1


def test_versions_of_plug_ins_that_are_off():
    rewrite = lampwork.rewrite("neg(neg(x))", "x", name="of_reset")
    try:
        compiled = lampwork.compile(lambda x: -(-x))
        compiled(X)
        rewrite.disable()
        compiled(X)
        lampwork.reset(compiled)
        rewrite.enable()
        assert compiled.entries == ()
    finally:
        rewrite.unregister()


def test_trained_functions():
    compiled, x = lampwork.compile(lambda x: (x * x).sin()), X.clone().requires_grad_()
    out = compiled(x)
    lampwork.reset()
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2 * X * (X * X).cos())
    x.grad = None
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * X * (X * X).cos())


def test_from_within_a_compilation():
    def backend(gm, example_inputs):
        lampwork.reset()
        return gm.forward

    compiled = lampwork.compile(scaled, backend=backend)
    assert torch.equal(compiled(X), X * 2) and compiled.entries == ()
    assert torch.equal(compiled(X), X * 2)


def test_from_within_a_compiled_function():
    def f(x):
        y = x + 1
        lampwork.reset()
        return y * 2

    compiled = lampwork.compile(f)
    for _ in range(3):
        assert torch.equal(compiled(X), (X + 1) * 2)


def test_while_other_threads_call():
    compiled, failures, done = lampwork.compile(breaking), [], threading.Event()

    def work(number):
        x = torch.full((number + 2,), float(number))
        while not done.is_set():
            try:
                if not torch.equal(compiled(x), x * 2 + 1):
                    failures.append("wrong")
            except Exception as error:  # noqa: BLE001  (any is a failure, and has to reach the test)
                failures.append(error)
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        lampwork.reset(compiled if turn % 2 else None)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("wrong", [scaled, nn.Linear(2, 2), 3], ids=["function", "module", "number"])
def test_what_was_not_compiled(wrong):
    with pytest.raises(OptionError, match=r"reset\(\) takes what lampwork.compile returned, got") as caught:
        lampwork.reset(wrong)
    assert caught.value.fix
