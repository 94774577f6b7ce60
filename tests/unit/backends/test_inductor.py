"""The backend `inductor`, torch's own compiler: needs a C++ compiler."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from same import assert_same  # noqa: E402
from torch import Tensor, nn

import lampwork

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"),
]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.last(torch.relu(self.conv(x)).mean((2, 3))), dim=-1)


def test_a_network_whose_weights_change() -> None:
    model, x = Network().eval(), torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        compiled = lampwork.compile(model, backend="inductor")
        assert_same(model, compiled(x), x)
        model.conv.weight.mul_(2)
        assert_same(model, compiled(x), x)
    assert compiled.stages.partition.startswith("part 0: inductor,")


def test_an_input_that_is_written() -> None:
    def step(state: Tensor, x: Tensor) -> Tensor:
        state.add_(x)
        return state.sin() * 2

    compiled = lampwork.compile(step, backend="inductor")
    ours, theirs, x = torch.zeros(8), torch.zeros(8), torch.randn(8)
    torch.testing.assert_close(compiled(ours, x), step(theirs, x))
    torch.testing.assert_close(ours, theirs)


def test_it_is_loaded_only_when_it_compiles() -> None:
    assert "inductor" in lampwork.list_backends()
