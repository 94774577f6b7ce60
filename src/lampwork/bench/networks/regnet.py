"""RegNetY, as its paper and torchvision define it: grouped convolutions with squeeze and excitation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lampwork.bench.networks.blocks import SqueezeExcite, conv_norm


class _Block(nn.Module):
    """1x1, grouped 3x3, squeeze and excite, 1x1 (arXiv:2003.13678, figure 4)."""

    def __init__(self, inplanes: int, planes: int, stride: int, group_width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            conv_norm(inplanes, planes, activation=nn.ReLU),
            conv_norm(planes, planes, 3, stride, planes // group_width, nn.ReLU),
            SqueezeExcite(planes, inplanes // 4, nn.ReLU, nn.Sigmoid),
            conv_norm(planes, planes),
        )
        self.shortcut = (
            conv_norm(inplanes, planes, stride=stride) if stride != 1 or inplanes != planes else None
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.shortcut is None else self.shortcut(x)
        return self.relu(identity + self.branch(x))


class RegNetY(nn.Module):
    """float32[N, 3, H, W] -> float32[N, classes]. The defaults are those of RegNetY-800MF."""

    def __init__(
        self,
        depths: Sequence[int] = (1, 3, 8, 2),
        widths: Sequence[int] = (64, 144, 320, 784),
        group_width: int = 16,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        planes = 32
        parts: list[nn.Module] = [conv_norm(3, planes, 3, 2, activation=nn.ReLU)]
        for depth, width in zip(depths, widths, strict=True):
            for i in range(depth):
                parts.append(_Block(planes, width, 2 if i == 0 else 1, group_width))
                planes = width
        self.features = nn.Sequential(*parts)
        self.head = nn.Linear(planes, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.head(torch.flatten(x, 1))
