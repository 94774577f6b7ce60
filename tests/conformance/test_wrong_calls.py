"""Random wrong calls give eager's result or eager's exception: a few here, n times as many with LAMPWORK_FUZZ=n."""

from __future__ import annotations

import os
import random

import pytest
import wrong_calls

pytest.importorskip("expecttest")

SHARDS = 4
CALLS = 75


@pytest.mark.parametrize("shard", range(SHARDS))
def test_wrong_calls_fuzz(shard: int) -> None:
    times = int(os.environ.get("LAMPWORK_FUZZ") or 0)
    first = random.randrange(2**32) if times else shard * CALLS
    count = CALLS * max(times, 1)
    print(f"seeds {first} to {first + count - 1}")
    found = list(wrong_calls.fuzz(range(first, first + count)))
    assert not found, "\n".join(f"{f.name}: {f.detail}" for f in found)
