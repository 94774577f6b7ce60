"""Recurrent networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lampwork.bench.workloads.workload import Maker


class Lstm(nn.Module):
    """Two layers of 256: float32[N, T, 256] -> float32[N, T, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(256, 256, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Gru(nn.Module):
    """Two layers of 256: float32[N, T, 256] -> float32[N, T, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(256, 256, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


RECURRENT: dict[str, Maker] = {
    "lstm": lambda: (Lstm().eval(), (torch.randn(4, 64, 256),)),
    "gru": lambda: (Gru().eval(), (torch.randn(4, 64, 256),)),
}
