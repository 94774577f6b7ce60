"""Blocks that a multiprocessor holds, against what NVIDIA's calculator gives."""

from __future__ import annotations

import pytest

from lampwork.codegen.gpu.nvidia import describe
from lampwork.codegen.gpu.occupancy import MULTIPROCESSORS, balance, blocks_at_a_time, waves


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "blocks"),
    [
        (90, 256, 32, 0, 8),  # threads are the limit
        (90, 128, 32, 0, 16),
        (90, 64, 16, 0, 32),  # blocks are
        (90, 512, 44, 8192, 2),  # registers: 48 a thread are taken for 44
        (90, 128, 255, 0, 2),
        (90, 256, 32, 48 << 10, 4),  # shared memory
        (90, 256, 32, 227 << 10, 1),
        (90, 256, 32, 228 << 10, 0),
        (80, 256, 32, 163 << 10, 1),
        (75, 256, 32, 0, 4),
        (86, 256, 32, 0, 6),
        (89, 33, 32, 0, 24),  # whole warps
        (120, 1024, 32, 0, 1),
    ],
)
def test_blocks_at_a_time(capability: int, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert blocks_at_a_time(capability, threads, registers, shared) == blocks


def test_waves_and_balance() -> None:
    assert waves(1056, 132, 8) == 1.0 and waves(1057, 132, 8) > 1.0
    assert balance(132, 132) == 1.0 and balance(133, 132) < 0.51
    assert balance(1, 132) < 0.01
    card = describe(90, 132)
    assert card.fills(132) and card.fills(264) and card.fills(128)
    assert not card.fills(64) and not card.fills(140)


def test_every_card_is_in_the_table() -> None:
    for capability, has in MULTIPROCESSORS.items():
        card = describe(capability)
        assert (card.scratch_bytes or 0) < has.shared_of_block <= has.shared
        assert blocks_at_a_time(capability, 256, 64, card.scratch_bytes or 0) >= 1
