"""Random programs of reductions, scans, gathers, scatters, norms and mixed dtypes, each kernel by the threads of a
card."""

from __future__ import annotations

import os
from collections.abc import Iterator

import card_programs
import pytest
import torch
from grids import CARD
from scalar_target import native_on
from simulated import simulating_target

SEEDS = int(os.environ.get("LAMPWORK_FUZZ", "16"))
FIRST = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_random_programs_of_cards_fuzz(seed: int) -> None:
    """Thread after thread, or every third one on the simulated card, with its warps, barriers and shared memory."""
    with native_on(simulating_target() if seed % 3 == 0 else CARD):
        card_programs.check(seed)
