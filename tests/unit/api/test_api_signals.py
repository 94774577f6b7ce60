"""Exceptions that signal handlers raise while something is compiled."""

from __future__ import annotations

import enum
import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lampwork
from lampwork.compiled import transformed
from lampwork.graph.record import Recorder


class TimeIsUpError(Exception):
    pass


def handle(*args: Any) -> None:
    raise TimeIsUpError


class Handler:
    def __call__(self, *args: Any) -> None:
        raise TimeIsUpError

    def handle(self, *args: Any) -> None:
        handle()


@pytest.fixture
def install() -> Iterator[Callable[[Any], Any]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "stage",
    [(Recorder, "result"), (Recorder, "__exit__"), (transformed, "run_passes")],
    ids=["capture", "end of capture", "passes"],
)
@pytest.mark.parametrize("handler", [handle, Handler(), Handler().handle, functools.partial(handle, 1)])
def test_they_reach_the_caller_and_refuse_nothing(handler, stage, install, monkeypatch):
    install(handler)
    owner, name = stage
    usual = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return usual(*args, **kwargs)

    # As a part of the compiler: no code of the program's runs while it is captured.
    interrupted.__code__ = interrupted.__code__.replace(co_filename=lampwork.api.__file__)
    f = lampwork.compile(lambda x: x.sin() + 1, options={"strict": False})
    x = torch.ones(3)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(TimeIsUpError) as caught:
            f(x)
    assert caught.value.__context__ is None
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    torch.testing.assert_close(f(x), x.sin() + 1)
    assert len(f.entries) == 1


def test_those_that_the_program_handles_are_its_own(install):
    """The rest of a function is compiled while such an exception is on its way."""

    class Fails:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: Any) -> None:
            raise KeyError("on exit")

    def f(x: torch.Tensor) -> torch.Tensor:
        with Fails():
            signal.raise_signal(signal.SIGUSR1)
        return x + 1

    install(handle)
    compiled = lampwork.compile(f, options={"strict": False})
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            compiled(torch.ones(3))
        assert isinstance(caught.value.__context__, TimeIsUpError)


def interrupted_iterator(usual: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """A generator that is interrupted, and so ends."""
    signal.raise_signal(signal.SIGUSR1)
    yield usual(*args, **kwargs)


@pytest.mark.parametrize("handles", [False, True], ids=["let out", "wrapped"])
def test_they_are_found_behind_generators_that_have_ended(handles, install, monkeypatch):
    """The frame of one that has ended does not know who called it."""
    install(handle)
    usual = transformed.run_passes

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if not handles:
            return next(value for value in interrupted_iterator(usual, *args, **kwargs))
        try:
            return next(value for value in interrupted_iterator(usual, *args, **kwargs))
        except TimeIsUpError as error:
            raise ValueError("wrapped") from error

    f = lampwork.compile(lambda x: x.sin() + 1, options={"strict": False})
    x = torch.ones(3)
    with monkeypatch.context() as patch:
        patch.setattr(transformed, "run_passes", interrupted)
        with pytest.raises(TimeIsUpError):
            f(x)
    torch.testing.assert_close(f(x), x.sin() + 1)
    assert len(f.entries) == 1


@pytest.mark.filterwarnings("ignore::lampwork.LampworkWarning")
def test_how_enumerations_are_made_is_the_programs_to_change(monkeypatch):
    """The compiler looks at the handlers of signals, which `signal` gives as enumerations."""
    monkeypatch.delenv("LAMPWORK_STRICT", raising=False)
    compiled = lampwork.compile(lambda x: x * int(str(x.dim())) if x.dim() else 1 / 0)
    monkeypatch.setattr(enum.EnumType, "__call__", lambda *args, **kwargs: None)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.tensor(1.0))
