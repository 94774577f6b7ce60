"""The garbage collector stays as the program has set it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest
import torch

import lampwork
from lampwork.garbage import without_collections


@pytest.fixture(autouse=True)
def enabled_again() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_setting_is_kept(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    with pytest.raises(ZeroDivisionError), without_collections():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled() is enabled


def test_a_child_forked_meanwhile_collects() -> None:
    with without_collections():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_thread_that_leaves_does_not_start_collections_of_another_one() -> None:
    """A collection while a CUDA graph is captured may free what must not be freed meanwhile."""
    entered, leave = threading.Event(), threading.Event()

    def compile_meanwhile() -> None:
        with without_collections():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=compile_meanwhile)
    thread.start()
    entered.wait(10)
    with without_collections():
        leave.set()
        thread.join()
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_compiling_keeps_the_setting(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    assert lampwork.compile(lambda x: x.relu() + 1)(torch.ones(3)).tolist() == [2, 2, 2]
    assert gc.isenabled() is enabled
