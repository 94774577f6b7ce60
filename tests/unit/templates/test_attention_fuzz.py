"""Random calls of attention through the template, against float64, on every instruction set."""

from __future__ import annotations

import os

import pytest
from attention_support import check, draw
from instruction_sets import INSTRUCTION_SETS
from scalar_target import target_named

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "12"))


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, "scalar"])
def test_a_random_attention(isa: str, seed: int) -> None:
    check(draw(seed), target_named(isa))
