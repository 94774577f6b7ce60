"""Small models of the tests of artifacts."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Tied weights, a buffer that is not saved, a tensor that is none of them, and a dict for a result."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.unused = nn.Linear(2, 2)
        self.register_buffer("shift", torch.randn(8), persistent=False)
        self.register_buffer("scale", torch.randn(8))
        self.plain = torch.randn(8)

    def forward(self, x: Tensor, *, add: Tensor | None = None, factor: float = 1.0) -> dict[str, Any]:
        y = self.second(torch.relu(self.first(x))) * self.scale + self.shift + self.plain
        if add is not None:
            y = y + add
        return {"y": y * factor, "rows": x.shape[0], "first": y[:, 0], "x": x}


class Point(NamedTuple):
    left: Tensor
    right: Tensor


@dataclasses.dataclass
class Pair:
    one: Tensor
    two: Tensor | None = None
    name: str = "pair"


class Nested(nn.Module):
    """Takes and gives containers."""

    def forward(self, items: list[Tensor], named: dict[str, Any], flag: bool = True) -> Any:
        total = items[0] + items[1] * named["weight"]
        if flag:
            total = total + named["inner"][0]
        return Point(total, total.sum()), [Pair(total * 2)], None, 3


class Counting(nn.Module):
    """Writes to a buffer and to an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        x.mul_(2)
        return x + self.count


class Cached(nn.Module):
    """Two methods over the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.mix = nn.Linear(16, 8)

    def prefill(self, ids: Tensor) -> Tensor:
        return self.embed(ids).cumsum(1)

    def decode(self, last: Tensor, cache: Tensor) -> Tensor:
        new = self.mix(torch.cat([self.embed(last), cache[:, -1]], -1))
        return torch.cat([cache, new[:, None]], 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.prefill(ids)
