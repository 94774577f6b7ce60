"""Golden text of every stage that is the same on all machines, for four small programs, with the ISA forced to AVX2.

`assembly` is left out (it is LLVM's, and tuned to the host), `passes` has its times taken out, and files are named
without their folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lampwork

STAGES = (
    "guards",
    "graph",
    "passes",
    "optimized",
    "partition",
    "definitions",
    "fusion",
    "kernels",
    "llvm",
    "program",
)


def lerp(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * x + (1 - w) * y


def masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scores.masked_fill(mask, float("-inf")), -1)


class ResidualNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(48)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(x + residual)


def program(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A fresh function or module, and inputs."""
    if name == "lerp":
        return lerp, (torch.randn(200), torch.randn(200), torch.rand(200))
    if name == "masked_softmax":
        return masked_softmax, (torch.randn(4, 20), torch.rand(4, 20) < 0.3)
    if name == "residual_layer_norm":
        return ResidualNorm().eval(), (torch.randn(6, 48), torch.randn(6, 48))
    if name == "mlp":
        layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))
        return layers.eval(), (torch.randn(8, 16),)
    raise ValueError(name)


NAMES = ("lerp", "masked_softmax", "residual_layer_norm", "mlp")


def stages_text(name: str) -> str:
    fn, inputs = program(name)
    compiled = lampwork.compile(fn, options={"isa": "avx2", "strict": True}, fullgraph=True)
    with torch.no_grad():
        got, want = compiled(*inputs), fn(*inputs)
    torch.testing.assert_close(got, want)
    return "\n\n".join(f"==== {stage} ====\n{tidy(compiled.stages.text(stage))}" for stage in STAGES)


def tidy(text: str) -> str:
    """Without folders, times and trailing blanks. Lines of libraries go too: they move with every release."""
    text = re.sub(r"(?:/[\w.+-]+)+/(?=[\w.+-]+\.py:\d)", "", text)
    text = re.sub(r", \d+\.\d+ ms", "", text)
    text = re.sub(r"# (?!test_stages_golden)([\w.]+\.py):\d+", r"# \1", text)
    text = re.sub(r"(# test_stages_golden\.py):\d+", r"\1", text)
    # A process counts its templates; what other tests compiled before must not show.
    names: dict[str, str] = {}
    text = re.sub(r"\blwt\d+", lambda found: names.setdefault(found[0], f"lwt{len(names)}"), text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_every_stage(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"stages/{name}", stages_text(name))


@pytest.mark.parametrize("name", NAMES)
def test_again_in_the_same_process(name: str) -> None:
    assert stages_text(name) == stages_text(name)


def test_in_a_fresh_process_with_another_hash_seed(tmp_path: Path) -> None:
    # The other order, so that whatever a program leaves behind meets another one.
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); import test_stages_golden as t\n"
        "for name in reversed(t.NAMES): open(f'{sys.argv[2]}/{name}', 'w').write(t.stages_text(name))"
    )
    environment = dict(os.environ, PYTHONHASHSEED="12345")
    folder = Path(__file__).parent
    subprocess.run([sys.executable, "-c", code, str(folder), str(tmp_path)], check=True, env=environment)
    for name in NAMES:
        assert (tmp_path / name).read_text() == stages_text(name)
