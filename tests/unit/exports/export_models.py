"""Models that are exported in tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class TwoLayers(nn.Module):
    """Layers, a buffer, and a result in a dict, one part of which is a view."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.norm = nn.LayerNorm(8)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"sum": self.norm(x + self.net(x)) * self.scale, "flat": x.view(-1)}


class Attention(nn.Module):
    """Attention over sequences of any length; a number among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, *scales: Tensor) -> tuple[Tensor, int]:
        batch, length, width = x.shape
        heads = self.project(x).view(batch, length, 2, 4).transpose(1, 2)
        mixed = (heads @ heads.transpose(-1, -2)).softmax(-1) @ heads
        return self.norm(mixed.transpose(1, 2).reshape(batch, length, width) + x) * scales[0], batch * 2


class Residual(nn.Module):
    """A block of ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 3, 1)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + self.second(self.norm(self.first(x)).relu())).mean((2, 3)))


class Decoder(nn.Module):
    """One step with a cache, which may be empty: a mask of constants, and indices of several dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.key = nn.Linear(8, 8)

    def forward(self, tokens: Tensor, cache: Tensor) -> dict[str, Tensor]:
        x = self.embed(tokens)
        keys = torch.cat([cache, self.key(x)], dim=1) if cache.dim() > 1 else torch.cat([cache, self.key(x)])
        length = keys.shape[1]
        allowed = x.new_ones(length, length).tril()
        rows = torch.arange(length).clamp(max=tokens.shape[1] - 1)
        picked = allowed[rows[:, None], torch.arange(length)[None, :]]
        return {"keys": keys, "mixed": (x @ keys.transpose(1, 2)) * picked[: tokens.shape[1]]}


class Held:
    """An object with a tensor, as caches are."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class Counting(nn.Module):
    """Trained with batch statistics; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, *, extra: dict[str, list[Tensor]]) -> tuple[Tensor, int]:
        self.calls += 1
        return self.norm(self.linear(x)) + extra["a"][0], 3


ODD_NAMES = ('a "<b>"\\n&', "ünï/x", "n\nl\\")


class Odd(nn.Module):
    """Names that no format likes; one that looks like a name of ours."""

    def __init__(self) -> None:
        super().__init__()
        for name in ODD_NAMES:
            self.add_module(name, nn.Linear(3, 3))
        self.relu = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for name in ODD_NAMES:
            x = self._modules[name](x).relu()
        return x * self.relu[1] + self.relu[2]


def breaking(x: Tensor) -> Tensor:
    """Two regions."""
    y = (x @ x).relu()
    print("between")
    return y.sum() + 1


def error(found: Any, expected: Tensor) -> float:
    """The largest difference of a result, a tensor or an array."""
    found = found.detach() if isinstance(found, Tensor) else torch.from_numpy(found)
    expected = expected.detach()
    assert found.shape == expected.shape and found.dtype == expected.dtype
    return float((found.double() - expected.double()).abs().max())
