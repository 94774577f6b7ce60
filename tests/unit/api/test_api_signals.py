"""Exceptions that signal handlers raise while something is compiled."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lampwork.api
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
    "stage", [(Recorder, "result"), (lampwork.api, "run_passes")], ids=["capture", "passes"]
)
@pytest.mark.parametrize("handler", [handle, Handler(), Handler().handle, functools.partial(handle, 1)])
def test_they_reach_the_caller_and_refuse_nothing(handler, stage, install, monkeypatch):
    install(handler)
    owner, name = stage
    usual = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return usual(*args, **kwargs)

    f = lampwork.compile(lambda x: x.sin() + 1, options={"strict": False})
    x = torch.ones(3)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(TimeIsUpError) as caught:
            f(x)
    assert caught.value.__context__ is None
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
