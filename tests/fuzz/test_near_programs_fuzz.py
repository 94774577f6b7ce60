"""Programs that differ in one thing each have their own entry of the cache, and run from it, and from a file, as eager
does."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from near_programs import Program, changed, grown
from torch import Tensor

import lampwork
from lampwork.partitioning import compiling

FAMILIES = max(1, int(os.environ.get("LAMPWORK_FUZZ", "240")) // 20)
SEED = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))
NEAR = 4
"""Programs of a family beside the first."""


def family(seed: int) -> list[Program]:
    pick = random.Random(seed)
    first = grown(seed)
    return list(dict.fromkeys([first, *(changed(first, pick) for _ in range(NEAR))]))


def same(run: Callable[..., Any], program: Program) -> None:
    """Values, layouts, what is a view of the input, and what becomes of that."""
    (x, weight), (y, _) = program.inputs(), program.inputs()
    found: tuple[Tensor, ...] = run(x, weight)
    expected = program(y, weight)
    torch.testing.assert_close(x, y, rtol=0, atol=0)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, check_stride=True)
        shares = [
            one.untyped_storage()._cdata == other.untyped_storage()._cdata
            for one, other in ((ours, x), (theirs, y))
        ]
        assert shares[0] == shares[1]


@pytest.mark.parametrize("seed", range(SEED, SEED + FAMILIES))
def test_each_program_runs_from_its_own_entry(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path))
    programs = family(seed)
    made: list[tuple[int, int]] = []
    for _ in range(2):
        for program in programs:
            monkeypatch.setattr(compiling, "_cache", compiling._Cache())  # as in a new process
            before = lampwork.stats()
            same(lampwork.compile(program.__call__), program)
            after = lampwork.stats()
            made.append(tuple(after[k] - before[k] for k in ("backend_compiles", "backend_restored")))
    cold, warm = made[: len(programs)], made[len(programs) :]
    # Whatever the first round compiled or found, the second one finds.
    assert warm == [(0, sum(counts)) for counts in cold]


@pytest.mark.parametrize("seed", range(SEED, SEED + max(1, FAMILIES // 4)))
@pytest.mark.parametrize("trust", [True, False])
def test_each_program_runs_from_a_file(seed: int, trust: bool, tmp_path: Path) -> None:
    for number, program in enumerate(family(seed)):
        path = tmp_path / f"{number}.lamp"
        lampwork.export(program.__call__, program.inputs(), path=path, targets="host")
        same(lampwork.load(path, trust=trust), program)
