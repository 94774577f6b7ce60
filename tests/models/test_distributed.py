"""Training on several processes (gloo): every rank compiles for itself, and gradients are averaged as eager's are.

The tasks, in `data_parallel` and `sharded`, run one after the other on the same ranks.
"""

from __future__ import annotations

import sys

import data_parallel
import pytest
import sharded
import torch
from ranks import on_ranks, outcomes

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed"),
    pytest.mark.skipif(sys.platform != "linux", reason="gloo over the loopback device"),
]

TASKS = {**data_parallel.TASKS, **sharded.TASKS}
ON_FOUR = (
    "inside plain",
    "inside unused",
    "inside uneven",
    "inside accumulating",
    "outside plain",
    "early inside",
    "no forward on one rank",
    "fsdp: compiled, then sharded",
    "fsdp: sharded, then blocks compiled",
    "tensor parallel: compiled after",
    "DTensors as arguments",
    "collective: all_reduce",
    "collective: reduce_scatter",
)


@pytest.fixture(scope="module")
def on_two() -> list[dict[str, str]]:
    return on_ranks(2, outcomes, TASKS, tuple(TASKS))


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, str]]:
    return on_ranks(4, outcomes, TASKS, ON_FOUR)


@pytest.mark.parametrize("name", TASKS)
def test_on_two_processes(name: str, on_two: list[dict[str, str]]) -> None:
    assert [found[name] for found in on_two] == [""] * 2


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_processes(name: str, on_four: list[dict[str, str]]) -> None:
    assert [found[name] for found in on_four] == [""] * 4
