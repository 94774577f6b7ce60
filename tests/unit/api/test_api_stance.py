"""set_stance: as a function, a context manager and a decorator; in several threads."""

from __future__ import annotations

import threading

import pytest
import torch

import lampwork
from lampwork.compiled.stance import _process, current_stance
from lampwork.errors import OptionError, RecompileError

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def restored():
    assert current_stance() == "default"
    yield
    lampwork.set_stance("default")
    _process.settings.clear()


@pytest.fixture
def probe():
    """A compiled function that tells whether it ran compiled, as `probe(x) is x` does not hold in eager only."""

    def f(x):
        return x * 2, torch.compiler.is_compiling()

    return lampwork.compile(f)


def test_function(probe):
    assert probe(X)[1]
    assert probe.entries[0].hits == 1
    lampwork.set_stance("force_eager")
    assert not probe(X)[1] and probe.entries[0].hits == 1
    lampwork.set_stance("default")
    assert probe(X)[1] and probe.entries[0].hits == 2


@pytest.mark.parametrize("spelling", ["eager", "force-eager", "force_eager"])
def test_context(probe, spelling):
    lampwork.reset_stats()
    with lampwork.set_stance(spelling):
        assert not probe(X)[1]
        assert current_stance() == "force_eager"
    assert current_stance() == "default"
    assert not probe.entries and lampwork.stats()["eager_calls"] == 1
    assert probe(X)[1]


def test_decorator(probe):
    @lampwork.set_stance("force_eager")
    def eager(x):
        """Eager."""
        return probe(x)

    assert eager.__doc__ == "Eager." and current_stance() == "default"
    assert probe(X)[1] and not eager(X)[1] and probe(X)[1]


def test_eager_on_recompile(probe):
    with lampwork.set_stance("eager_on_recompile"):
        assert not probe(X)[1]
    probe(X)
    with lampwork.set_stance("eager-on-recompile"):
        assert probe(X)[1] and not probe(X.double())[1]
    assert len(probe.entries) == 1


def test_fail_on_recompile(probe):
    with lampwork.set_stance("fail_on_recompile"), pytest.raises(RecompileError) as caught:
        probe(X)
    assert "it has no compiled version yet" in str(caught.value) and caught.value.code == "LW151"
    probe(X)
    with lampwork.set_stance("fail-on-recompile"):
        assert probe(X)[1]
        with pytest.raises(RecompileError) as caught:
            probe(X.double())
    text = str(caught.value)
    assert "Tensor float32[2, 3]" in text and "Tensor float64[2, 3]" in text and __file__ in text
    assert "eager_on_recompile" in text and len(probe.entries) == 1
    assert probe(X.double())[1]


def test_refused_functions_run_eager_under_fail_on_recompile(monkeypatch):
    monkeypatch.setenv("LAMPWORK_STRICT", "0")

    def f(x):
        yield x

    compiled = lampwork.compile(f)
    with pytest.warns(lampwork.LampworkWarning):
        list(compiled(X))
    with lampwork.set_stance("fail_on_recompile"):
        assert list(compiled(X)) == [X]


def test_nesting_and_order():
    lampwork.set_stance("eager_on_recompile")
    with lampwork.set_stance("force_eager"):
        with lampwork.set_stance("default"):
            assert current_stance() == "default"
            lampwork.set_stance("fail_on_recompile")
            assert current_stance() == "fail_on_recompile"
        assert current_stance() == "force_eager"
    assert current_stance() == "eager_on_recompile"
    again = lampwork.set_stance("force_eager")
    for _ in range(3):
        with again:
            assert current_stance() == "force_eager"
            with again:
                pass
            assert current_stance() == "force_eager"
    assert current_stance() == "eager_on_recompile"
    with pytest.raises(ZeroDivisionError), lampwork.set_stance("default"):
        raise ZeroDivisionError
    assert current_stance() == "eager_on_recompile"
    for _ in range(100):
        lampwork.set_stance("default")
    assert len(_process.settings) <= 2


def test_threads_end_their_own(probe):
    started, done = threading.Barrier(3), threading.Barrier(3)
    failures = []

    def work(stance):
        with lampwork.set_stance(stance):
            started.wait()
            if not torch.equal(probe(X)[0], X * 2):
                failures.append(stance)
            done.wait()

    threads = [threading.Thread(target=work, args=(s,)) for s in ("force_eager", "eager_on_recompile")]
    for thread in threads:
        thread.start()
    started.wait()
    assert current_stance() in ("force_eager", "eager_on_recompile")
    done.wait()
    for thread in threads:
        thread.join()
    assert not failures and current_stance() == "default"
    assert probe(X)[1]


def sides(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def test_the_rest_after_a_break_obeys_too():
    compiled = lampwork.compile(sides)
    assert torch.equal(compiled(X), X * 2)
    with lampwork.set_stance("eager_on_recompile"):
        assert torch.equal(compiled(-X), -X - 1)
    (entry,) = compiled.entries
    assert (entry.hits, len(entry.regions)) == (2, 2)
    with lampwork.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(X), X * 2)
        with pytest.raises(RecompileError, match="sides_resume"):
            compiled(-X)
    assert torch.equal(compiled(-X), -X - 1) and len(entry.regions) == 3


def test_a_function_that_sets_a_stance_itself():
    seen = []

    def f(x):
        y = x + 1
        with lampwork.set_stance("force_eager"):
            seen.append(current_stance())
            y = y * 2
        seen.append(current_stance())
        return y

    compiled = lampwork.compile(f)
    for _ in range(2):
        assert torch.equal(compiled(X), (X + 1) * 2)
    assert seen == ["force_eager", "default"] * 2
    assert compiled.entries[0].hits == 2 and compiled.entries[0].breaks[0].code == "LW103"


@pytest.mark.parametrize("bad, near", [("force_eagr", "force_eager"), ("recompile", "")])
def test_unknown_stance(bad, near):
    with pytest.raises(OptionError) as caught:
        lampwork.set_stance(bad)
    assert caught.value.cause == f"unknown stance {bad!r}" and near in caught.value.fix
    assert current_stance() == "default"
