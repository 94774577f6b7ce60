"""The compiler asks torch for its modes through `lampwork.modes` only: programs patch the functions that ask."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest
import torch

import lampwork
from lampwork import modes

SOURCES = Path(lampwork.__file__).parent


def test_nobody_else_asks_torch() -> None:
    asks = re.compile(rf"\btorch\.({'|'.join(modes.__all__)})\(")
    found = [
        f"{path.name}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        if "bench" not in path.parts
        for line in path.read_text().splitlines()
        if asks.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("name", ["is_inference_mode_enabled", "are_deterministic_algorithms_enabled"])
def test_what_a_program_is_told_is_not_what_is(name: str) -> None:
    x = torch.ones(2)

    def asked(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if getattr(torch, name)() else 3)

    compiled = lampwork.compile(asked)
    assert compiled(x)[0] == 3
    with mock.patch.object(torch, name, lambda: True):
        assert compiled(x)[0] == 2
    assert compiled(x)[0] == 3
