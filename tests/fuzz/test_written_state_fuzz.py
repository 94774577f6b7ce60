"""Random programs that write state and read it within one region do what they do in eager: few here, many with
LAMPWORK_FUZZ (`make fuzz`).

A failure prints its seed and the program, shrunk; `python tests/fuzz/written_state.py --seed SEED -n 1` repeats it.
"""

from __future__ import annotations

from unittest import mock

import pytest
from program_sides import compared
from ran import none_differ
from written_grammar import grown
from written_places import KINDS
from written_sides import WrittenSide

from lampwork.capture.semantics import held_state


def test_state_that_random_programs_write() -> None:
    none_differ("written_state.py", 24)


def test_a_program_that_writes_is_its_seeds() -> None:
    assert grown(7) == grown(7) != grown(8)
    texts = [grown(seed) for seed in range(300)]
    for text in texts:
        compile(text, "program", "exec")
    for kind in KINDS:
        assert any(f"{kind}0" in text for text in texts), kind


def test_it_finds_reads_that_do_not_go_by_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reads of a namespace pass over the copy of it that the region writes to, one of the programs that run here
    by default says so."""
    monkeypatch.delenv("LAMPWORK_STRICT")
    # No Python of the program's, which would end the region.
    monkeypatch.setattr(held_state, "dict_shadow", mock.Mock(return_value=None))
    found = next(seed for seed in range(24) if compared(grown(seed), "eager", WrittenSide) is not None)
    monkeypatch.undo()
    assert compared(grown(found), "eager", WrittenSide) is None
