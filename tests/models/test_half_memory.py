"""Weights of a half type stay in it: nothing that is made of them once and kept is as large in float32."""

from __future__ import annotations

import math
import re

import pytest
import torch
from same import assert_same
from scalar_target import native_on, target_named
from torch import nn

import lampwork

_CONSTANT = re.compile(r"^%\d+: (\w+)\[([\d, ]*)\].* constant \d+$")


class First(nn.Module):
    """The first result of a layer that has several."""

    def __init__(self, layer: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(*[x] * self.times)[0]


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64)), (20, 64)),
    "linear, one row": (nn.Linear(64, 96), (1, 64)),
    "linear, odd": (nn.Linear(65, 97), (20, 65)),
    "convolution": (
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 1)),
        (1, 32, 9, 9),
    ),
    "convolution, odd": (nn.Conv2d(33, 40, 3), (1, 33, 9, 9)),
    "convolution, groups": (nn.Conv2d(64, 64, 3, groups=4), (1, 64, 9, 9)),
    "lines": (nn.Conv1d(32, 64, 3), (1, 32, 50)),
    "norms": (nn.Sequential(nn.LayerNorm(64), nn.RMSNorm(64), nn.Linear(64, 64)), (20, 64)),
    "attention": (First(nn.MultiheadAttention(64, 4, batch_first=True), 3), (2, 20, 64)),
    "encoder": (nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (2, 20, 64)),
    "lstm": (First(nn.LSTM(64, 64, num_layers=2, batch_first=True)), (2, 9, 64)),
}


def kept(compiled: lampwork.Compiled) -> dict[str, int]:
    """The most elements of a constant of the program, by dtype."""
    found: dict[str, int] = {}
    for line in str(compiled.entries[0].stages.program).splitlines():
        match = _CONSTANT.match(line.strip())
        if match is not None:
            sizes = [int(size) for size in match[2].split(",") if size.strip()]
            found[match[1]] = max(found.get(match[1], 0), math.prod(sizes))
    return found


@pytest.mark.parametrize("isa", ["avx2", ""])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_no_copies_in_float32(name: str, dtype: torch.dtype, isa: str) -> None:
    torch.manual_seed(0)
    model, shape = MODELS[name]
    model, x = model.to(dtype).eval(), torch.randn(*shape).to(dtype)
    matrices = [each.numel() for each in model.parameters() if each.dim() > 1]
    with native_on(target_named(isa)):
        compiled = lampwork.compile(model, options={"strict": True})
        assert_same(model, compiled(x), x)
    sizes = kept(compiled)
    assert sizes.get("float32", 0) < min(matrices), sizes
    assert sizes.get("float64", 0) == 0


def test_the_text_names_what_is_kept() -> None:
    """That the test above would see a copy: here it is asked for."""
    weight = torch.randn(64, 96).bfloat16()
    compiled = lampwork.compile(lambda x: x @ weight.float(), options={"strict": True})
    with torch.no_grad():
        compiled(torch.randn(20, 64))
    assert kept(compiled)["float32"] >= weight.numel()
