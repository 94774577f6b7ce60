"""Random differentiable programs under random use: hooks, retained gradients, gradients between results, writes
before backward, second derivatives, several backward passes. Set LAMPWORK_FUZZ for more; a failure prints the seed and
the program."""

from __future__ import annotations

import os
import random

import gradient_programs
import pytest

import lampwork
from lampwork.runtime import autograd

COUNT = int(os.environ.get("LAMPWORK_FUZZ", "25"))
START = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))


def eager(text, names):
    exec(text, names)
    return names["f"]


def compiled(text, names):
    exec(compile(text, "<program>", "exec"), names)
    return lampwork.compile(names["f"])


@pytest.mark.parametrize("how", ["nodes of our own", "compiled backward"])
@pytest.mark.parametrize("seed", range(START, START + COUNT))
def test_random_gradients(seed, how, monkeypatch):
    monkeypatch.setattr(autograd, "AHEAD", how == "compiled backward")
    lampwork.reset_stats()
    expected = gradient_programs.play(seed, eager).log
    found = gradient_programs.play(seed, compiled).log
    wrong = gradient_programs.difference(expected, found)
    assert wrong is None, f"seed {seed}: {wrong}\n{gradient_programs.source(random.Random(seed))}"
