"""Collectives as nodes of the graphs of compiled functions, and ranks of which one cannot compile."""

from __future__ import annotations

import sys

import functional_collectives
import pytest
import torch
from functional_collectives import TASKS, ends_all
from ranks import on_ranks, outcomes

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed"),
    pytest.mark.skipif(sys.platform != "linux", reason="gloo over the loopback device"),
]

ON_FOUR = (
    "in graph: all_gather_tensor by columns",
    "in graph: permute_tensor",
    "in order",
    "falls back: function",
    "tensor parallel block",
)


@pytest.fixture(scope="module")
def on_two() -> list[dict[str, str]]:
    return on_ranks(2, outcomes, functional_collectives.TASKS, tuple(TASKS))


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, str]]:
    return on_ranks(4, outcomes, functional_collectives.TASKS, ON_FOUR)


@pytest.mark.parametrize("name", TASKS)
def test_on_two_processes(name: str, on_two: list[dict[str, str]]) -> None:
    assert [found[name] for found in on_two] == [""] * 2


@pytest.mark.parametrize("name", ON_FOUR)
def test_on_four_processes(name: str, on_four: list[dict[str, str]]) -> None:
    assert [found[name] for found in on_four] == [""] * 4


@pytest.mark.parametrize("kind", ("function", "fully_shard", "DDP"))
def test_a_rank_that_may_not_fall_back_ends_all(kind: str) -> None:
    with pytest.raises(
        torch.multiprocessing.ProcessRaisedException, match="injected on one rank|Connection closed"
    ):
        on_ranks(2, ends_all, kind)
