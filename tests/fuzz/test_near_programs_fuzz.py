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
from lampwork.compiled import transformed
from lampwork.partitioning import compiling
from lampwork.partitioning.kept import keeping
from lampwork.partitioning.shortcut import Shortcut, results_of

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


@pytest.mark.parametrize("seed", range(SEED, SEED + max(1, FAMILIES // 2)))
def test_what_is_kept_is_what_the_passes_come_to(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round the passes run all the same, to be compared."""
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path))
    monkeypatch.setenv("LAMPWORK_VERIFY", "")  # else the passes always run
    found = Shortcut.found
    told: list[bool] = []

    def compared(self: Shortcut, later: Callable[[], None]) -> Any:
        led = self.program()
        if led is not None:
            later()
            kept = keeping(
                self.subject.backend, self.subject.traits, self.subject.graph, self.subject.options
            )
            assert kept is not None and kept.key == led.key
            assert results_of(self.subject.graph) == led.results
            told.append(True)
        return found(self, later)

    for _ in range(2):
        for program in family(seed):
            same(lampwork.compile(program.__call__), program)
        monkeypatch.setattr(Shortcut, "found", compared)
    assert told


@pytest.mark.parametrize("seed", range(SEED, SEED + FAMILIES))
def test_each_program_runs_from_its_own_entry(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path))
    monkeypatch.setenv("LAMPWORK_VERIFY", "")  # else the passes always run
    programs = family(seed)
    made: list[tuple[int, int]] = []
    passed: list[int] = []
    run = transformed.run_passes

    def counted(*given: Any, **named: Any) -> Any:
        passed[-1] += 1
        return run(*given, **named)

    monkeypatch.setattr(transformed, "run_passes", counted)
    for _ in range(2):
        passed.append(0)
        for program in programs:
            monkeypatch.setattr(compiling, "_cache", compiling._Cache())  # as in a new process
            before = lampwork.stats()
            same(lampwork.compile(program.__call__), program)
            after = lampwork.stats()
            made.append(tuple(after[k] - before[k] for k in ("backend_compiles", "backend_restored")))
    cold, warm = made[: len(programs)], made[len(programs) :]
    # Whatever the first round compiled or found, the second one finds.
    assert warm == [(0, sum(counts)) for counts in cold]
    assert passed[0] >= passed[1] == 0


@pytest.mark.parametrize("seed", range(SEED, SEED + max(1, FAMILIES // 4)))
@pytest.mark.parametrize("trust", [True, False])
def test_each_program_runs_from_a_file(seed: int, trust: bool, tmp_path: Path) -> None:
    for number, program in enumerate(family(seed)):
        path = tmp_path / f"{number}.lamp"
        lampwork.export(program.__call__, program.inputs(), path=path, targets="host")
        same(lampwork.load(path, trust=trust), program)
