"""ConvNeXt-T, as its paper and torchvision define it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class _LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of [N, C, H, W]."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Block(nn.Module):
    """Depthwise 7x7, layer norm, two linear layers, a scale (arXiv:2201.03545, figure 4)."""

    def __init__(self, planes: int, scale: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(planes, planes, 7, padding=3, groups=planes)
        self.norm = nn.LayerNorm(planes, eps=1e-6)
        self.up = nn.Linear(planes, 4 * planes)
        self.activation = nn.GELU()
        self.down = nn.Linear(4 * planes, planes)
        self.scale = nn.Parameter(torch.full((planes,), scale))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(self.activation(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """float32[N, 3, H, W] -> float32[N, classes]. The defaults are ConvNeXt-T's.

    scale: what the branches' scales start from; 1e-6 in training, larger after it.
    """

    def __init__(
        self,
        depths: Sequence[int] = (3, 3, 9, 3),
        widths: Sequence[int] = (96, 192, 384, 768),
        classes: int = 1000,
        scale: float = 0.3,
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), _LayerNorm2d(widths[0], eps=1e-6)]
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if i:
                parts += [_LayerNorm2d(widths[i - 1], eps=1e-6), nn.Conv2d(widths[i - 1], width, 2, 2)]
            parts += [_Block(width, scale) for _ in range(depth)]
        self.features = nn.Sequential(*parts)
        self.norm = nn.LayerNorm(widths[-1], eps=1e-6)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean((2, 3))
        return self.head(self.norm(x))
