"""What torch refuses, compiled functions refuse: OpInfo's `error_inputs`, and its samples in all dtypes.

Here a part of them; all with LAMPWORK_FUZZ set, as in `make fuzz`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import odd_calls
import opinfo_samples
import pytest
import refused_calls
from refused_calls import Call

pytest.importorskip("expecttest")

FULL = "LAMPWORK_FUZZ" in os.environ
SHARDS = 8


def check(calls: Iterator[Call], dynamic: bool) -> None:
    wrong = [(call.name, found) for call in calls if (found := refused_calls.difference(call, dynamic))]
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_error_inputs_fuzz(shard: int, dynamic: bool) -> None:
    every = [c for op in opinfo_samples.database()[shard::SHARDS] for c in refused_calls.error_inputs(op)]
    check(iter(every if FULL else every[dynamic::4]), dynamic)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_other_dtypes_fuzz(shard: int) -> None:
    every = [c for op in opinfo_samples.database()[shard::SHARDS] for c in refused_calls.other_dtypes(op)]
    check(iter(every if FULL else every[::8]), False)


@pytest.mark.parametrize("dynamic", [False, True])
def test_odd_calls(dynamic: bool) -> None:
    check(odd_calls.calls(), dynamic)
