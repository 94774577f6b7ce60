"""Modules and functions of DTensors (tensor parallelism) on several processes, forward and backward.

The tasks, in `tensor_parallel`, run one after the other on the same ranks.
"""

from __future__ import annotations

import sys

import pytest
import torch
from ranks import on_ranks, outcomes
from tensor_parallel import ON_FOUR, TASKS

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed"),
    pytest.mark.skipif(sys.platform != "linux", reason="gloo over the loopback device"),
]


@pytest.fixture(scope="module")
def on_two() -> list[dict[str, str]]:
    return on_ranks(2, outcomes, TASKS, tuple(TASKS))


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, str]]:
    return on_ranks(4, outcomes, ON_FOUR, tuple(ON_FOUR))


@pytest.mark.parametrize("name", TASKS)
def test_on_two_processes(name: str, on_two: list[dict[str, str]]) -> None:
    assert [found[name] for found in on_two] == [""] * 2


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_processes(name: str, on_four: list[dict[str, str]]) -> None:
    assert [found[name] for found in on_four] == [""] * 4
