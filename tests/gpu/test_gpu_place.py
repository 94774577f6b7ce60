"""`lampwork.place` between the CPU and a card: whatever it chooses, results are eager's and lie where eager's lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gpu
import lampwork
from lampwork.placement import Device, PlacedModel

gpu.require()

DEVICES = ["cpu", gpu.DEVICE] if gpu.ON_GPU else ["cpu", "cpu:1 threads"]


class Model(nn.Module):
    """A table, a recurrent layer and products: what devices differ in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.lstm(self.embed(tokens))
        return self.head(hidden).softmax(-1), hidden[:, -1]


def placed(model: nn.Module, x: Tensor, devices: Any = DEVICES) -> PlacedModel:
    return lampwork.place(model, x, devices=devices)


@pytest.mark.parametrize("home", ["cpu", gpu.DEVICE])
@pytest.mark.parametrize("batch", [1, 32])
def test_results_are_eagers_where_eagers_are(home: str, batch: int) -> None:
    torch.manual_seed(0)
    model = Model().eval().to(home)
    tokens = torch.randint(500, (batch, 12), device=home)
    call = placed(model, tokens)
    for rows in (batch, batch + 3):
        other = torch.randint(500, (rows, 12), device=home)
        with torch.no_grad():
            torch.testing.assert_close(call(other), model(other), rtol=1e-2, atol=1e-3)  # devices too
    plan = call.plan
    assert not plan.absent and len(plan.singles) == 2 and all(single.seconds for single in plan.singles)
    assert plan.seconds <= min(single.seconds for single in plan.singles if single.seconds) * 1.5
    assert plan.difference < 1e-3 and str(plan)


class Forced(Device):
    """A device that cannot run operators of some names, so that parts are on both."""

    def __init__(self, name: str, missing: str) -> None:
        super().__init__(f"{name} without {missing}", torch.device(name))
        self._missing = missing

    def compile(self, module: Any) -> Any:
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        if any(self._missing in str(node.target) for node in nodes):
            raise NotImplementedError(f"no {self._missing}")
        return super().compile(module)


@pytest.mark.parametrize("home", ["cpu", gpu.DEVICE])
def test_parts_on_both_devices(home: str) -> None:
    """Copies between them, on streams that nobody waits for in the wrong order: many calls at once."""
    torch.manual_seed(0)
    model = Model().eval().to(home)
    tokens = torch.randint(500, (8, 12), device=home)
    call = placed(model, tokens, [Forced("cpu", "gelu"), Forced(gpu.DEVICE, "lstm")])
    assert len(call.plan.devices) == 2, str(call.plan)
    given = [torch.randint(500, (8, 12), device=home) for _ in range(20)]
    with torch.no_grad():
        for got, want in zip([call(x) for x in given], [model(x) for x in given], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)


def test_weights_that_change_are_copied_again() -> None:
    torch.manual_seed(0)
    model, tokens = Model().eval(), torch.randint(500, (8, 12))
    call = placed(model, tokens, [Forced("cpu", "gelu"), gpu.DEVICE])
    with torch.no_grad():
        call(tokens)
        model.head[0].weight.mul_(-1.5)
        torch.testing.assert_close(call(tokens), model(tokens), rtol=1e-2, atol=1e-3)
