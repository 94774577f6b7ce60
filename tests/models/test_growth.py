"""Equal layers are compiled once: a deeper network compiles no more machine code. Work is counted, not timed."""

from __future__ import annotations

import pytest

from lampwork.bench import growth
from lampwork.codegen.llvm.jit import Jit

pytest.importorskip("transformers")


def test_deeper_networks_compile_no_more_code(monkeypatch):
    emitted: list[str] = []
    original = Jit.object_code

    def counted(self: Jit, ir: str) -> bytes:
        emitted.append(ir)
        return original(self, ir)

    monkeypatch.setattr(Jit, "object_code", counted)
    two = growth.first_call(2)
    emitted.clear()
    four = growth.first_call(4)
    assert emitted == [], "four layers compiled code that two layers did not"
    assert four.distinct_functions == two.distinct_functions
    six_calls = 2 * four.kernel_calls - two.kernel_calls
    assert growth.first_call(6).kernel_calls == six_calls, "every layer makes as many calls as the one before"


def test_the_command_prints_both_depths_and_the_ratio(monkeypatch, capsys):
    measured = {2: growth.Growth(2, 0.5, 0.3, 9, 20), 8: growth.Growth(8, 1.0, 0.45, 9, 80)}
    monkeypatch.setattr(growth, "in_fresh_process", lambda layers, threads: measured[layers])
    assert growth.main(["--layers", "2", "8"]) == 0
    printed = capsys.readouterr().out
    assert (
        "BERT of   2 layers: first call   0.50 s, 0.30 s of it compiling, 9 distinct functions, 20 kernel calls"
        in printed
    )
    assert printed.endswith("4.0x the layers, 1.50x the compiling, 2.00x the first call\n")
