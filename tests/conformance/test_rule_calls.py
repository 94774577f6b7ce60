"""Random calls of operators with shape rules of ours: what is recorded is what eager gives, for all sizes that the
conditions allow for. A few here, 20 n with LAMPWORK_FUZZ=n."""

from __future__ import annotations

import os
import random

import pytest
import rule_calls

pytest.importorskip("expecttest")

CALLS = 600


def test_rule_calls_fuzz() -> None:
    wanted = int(os.environ.get("LAMPWORK_FUZZ") or 0)
    first = int(os.environ.get("LAMPWORK_FUZZ_SEED") or (random.randrange(2**32) if wanted else 0))
    count = 20 * wanted or CALLS
    print(f"seeds {first} to {first + count - 1}")
    found = list(rule_calls.fuzz(range(first, first + count)))
    assert not found, "\n".join(f"{f.name}: {f.detail}" for f in found)
