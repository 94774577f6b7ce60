"""Equal layers are compiled once: a deeper network compiles no more machine code. Work is counted, not timed."""

from __future__ import annotations

import pytest
import torch

import lampwork
from lampwork.bench.workloads.transformers import bert
from lampwork.codegen.llvm.jit import Jit

pytest.importorskip("transformers")


def counts_of(layers: int) -> dict[str, int]:
    """What a BERT of so many layers is compiled to."""
    torch.manual_seed(0)
    compiled = lampwork.compile(bert(layers))
    with torch.no_grad():
        compiled(torch.randint(0, 30522, (1, 128)))
    return compiled.stages.counts


def test_deeper_networks_compile_no_more_code(monkeypatch):
    emitted: list[str] = []
    original = Jit.object_code

    def counted(self: Jit, ir: str) -> bytes:
        emitted.append(ir)
        return original(self, ir)

    monkeypatch.setattr(Jit, "object_code", counted)
    two = counts_of(2)
    emitted.clear()
    four = counts_of(4)
    assert emitted == [], "four layers compiled code that two layers did not"
    assert four["distinct functions"] == two["distinct functions"]
    six_calls = 2 * four["kernel calls"] - two["kernel calls"]
    assert counts_of(6)["kernel calls"] == six_calls, "every layer makes as many calls as the one before"
