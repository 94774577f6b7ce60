"""The garbage collector stays as the program has set it."""

from __future__ import annotations

import gc
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


@pytest.mark.parametrize("enabled", [True, False])
def test_compiling_keeps_the_setting(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    assert lampwork.compile(lambda x: x.relu() + 1)(torch.ones(3)).tolist() == [2, 2, 2]
    assert gc.isenabled() is enabled
