"""Training on several processes (gloo): every rank compiles for itself, and gradients are averaged as eager's are.

The tasks, in `data_parallel` and `sharded`, run one after the other on the same ranks.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import data_parallel
import pytest
import sharded
import torch
from ranks import on_ranks

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed"),
    pytest.mark.skipif(sys.platform != "linux", reason="gloo over the loopback device"),
]

TASKS = {**data_parallel.TASKS, **sharded.TASKS}
ON_FOUR = (
    "inside plain",
    "inside unused",
    "inside uneven",
    "outside plain",
    "no forward on one rank",
    "fsdp: compiled, then sharded",
    "fsdp: sharded, then blocks compiled",
    "tensor parallel: compiled after",
    "DTensors as arguments",
    "collective: all_reduce",
    "collective: reduce_scatter",
)


def outcomes(rank: int, names: Sequence[str]) -> dict[str, str]:
    """What went wrong in each task on this rank."""
    found: dict[str, str] = {}
    for name in names:
        task, args = TASKS[name]
        try:
            task(rank, *args)
            found[name] = ""
        except Exception as error:  # noqa: BLE001  (told to the test)
            found[name] = "".join(traceback.format_exception(error))
    return found


@pytest.fixture(scope="module")
def on_two() -> list[dict[str, str]]:
    return on_ranks(2, outcomes, tuple(TASKS))


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, str]]:
    return on_ranks(4, outcomes, ON_FOUR)


@pytest.mark.parametrize("name", TASKS)
def test_on_two_processes(name: str, on_two: list[dict[str, str]]) -> None:
    assert [found[name] for found in on_two] == [""] * 2


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_processes(name: str, on_four: list[dict[str, str]]) -> None:
    assert [found[name] for found in on_four] == [""] * 4
