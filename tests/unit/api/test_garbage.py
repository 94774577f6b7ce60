"""The garbage collector stays as the program has set it."""

from __future__ import annotations

import gc
import os
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


@pytest.mark.parametrize("enabled", [True, False])
def test_compiling_keeps_the_setting(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    assert lampwork.compile(lambda x: x.relu() + 1)(torch.ones(3)).tolist() == [2, 2, 2]
    assert gc.isenabled() is enabled
