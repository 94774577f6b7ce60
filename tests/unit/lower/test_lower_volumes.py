"""Convolutions of volumes that torch computes by loops of its own: by the templates, in eager's order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from instruction_sets import INSTRUCTION_SETS
from same import assert_same
from torch import Tensor, nn

import lampwork

LAYERS: dict[str, Any] = {
    "plain": lambda: nn.Conv3d(16, 24, 3, padding=1),
    "by 2": lambda: nn.Conv3d(9, 17, 3, 2, 1),
    "few channels": lambda: nn.Conv3d(3, 16, 3, padding=1),
    "depthwise": lambda: nn.Conv3d(24, 24, 3, padding=1, groups=24),
    "groups": lambda: nn.Conv3d(32, 48, 3, groups=2),
    "transposed": lambda: nn.ConvTranspose3d(24, 16, 4, 2, 1),
    "single taps by 2": lambda: nn.Conv3d(16, 24, 1, 2),
}


def compiled(net: Any, isa: str = "") -> Any:
    return lampwork.compile(net, options={"strict": True, "isa": isa})


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_numbers_and_order(name: str, dtype: torch.dtype, isa: str) -> None:
    torch.manual_seed(0)
    net = LAYERS[name]().eval().to(dtype)
    x = torch.randn(1, net.in_channels, 5, 4, 6, dtype=dtype)
    ours = compiled(net, isa)
    with torch.no_grad():
        assert_same(net, ours(x), x)
    assert ours.stages.counts["ATen calls"] == 0 and ours.stages.counts["gemms"] == 1


@pytest.mark.parametrize("images", [1, 2, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_single_taps(images: int, dtype: torch.dtype) -> None:
    """Their order is that for the number of threads, unless the input is in rows."""
    net = nn.Conv3d(16, 24, 1).eval().to(dtype)
    x = torch.randn(images, 16, 5, 4, 6, dtype=dtype)
    with torch.no_grad():
        assert_same(net, compiled(net)(x), x)


def test_what_follows_reads_the_order() -> None:
    first, second = nn.Conv3d(8, 16, 3, padding=1), nn.Conv3d(16, 16, 3, padding=1)

    def program(x: Tensor) -> Tensor:
        y = torch.relu(first(x))
        return (second(y) + y).flatten(2).mean(-1)

    x = torch.randn(1, 8, 5, 4, 6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(program)(x), program(x), rtol=1e-4, atol=1e-4)
