"""Buffers that live at the same time have bytes of their own."""

from __future__ import annotations

import random

import pytest

from lampwork.runtime.arena import ALIGNMENT, place


def check(memory: list[tuple[bool, int]], nbytes: dict[int, int]) -> int:
    offsets, size = place(memory, nbytes)
    living: dict[int, tuple[int, int]] = {}
    for taken, number in memory:
        if not taken:
            del living[number]
            continue
        begin, end = offsets[number], offsets[number] + max(1, nbytes[number])
        assert begin % ALIGNMENT == 0
        assert end <= size
        assert all(end <= first or last <= begin for first, last in living.values())
        living[number] = (begin, end)
    return size


@pytest.mark.parametrize("seed", range(40))
def test_random_lifetimes(seed: int) -> None:
    draw = random.Random(seed)
    memory: list[tuple[bool, int]] = []
    nbytes: dict[int, int] = {}
    living: list[int] = []
    scale = draw.choice([100, 1 << 20])
    for number in range(draw.randint(1, 60)):
        while living and draw.random() < 0.45:
            memory.append((False, living.pop(draw.randrange(len(living)))))
        nbytes[number] = draw.choice([0, 1, scale // 7, scale, 3 * scale])
        memory.append((True, number))
        living.append(number)
    check(memory, nbytes)


def test_large_buffers_leave_no_gaps() -> None:
    """In order, 2 goes behind 1, where 0 was is too small for it, and 3 behind that."""
    unit = 1 << 20
    nbytes = {0: unit, 1: 2 * unit, 2: 3 * unit, 3: 3 * unit}
    memory = [(True, 0), (True, 1), (False, 0), (True, 2), (False, 1), (True, 3), (False, 2), (False, 3)]
    assert check(memory, nbytes) == 6 * unit


def test_no_buffers() -> None:
    assert place([], {}) == ({}, 0)
