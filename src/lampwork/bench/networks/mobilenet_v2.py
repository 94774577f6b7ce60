"""MobileNetV2, as its paper and torchvision define it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class InvertedResidual(nn.Module):
    """Expand, depthwise, project (arXiv:1801.04381, figure 4)."""

    def __init__(self, inplanes: int, planes: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inplanes * expand
        self.residual = stride == 1 and inplanes == planes
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [
                nn.Conv2d(inplanes, hidden, 1, bias=False),
                nn.BatchNorm2d(hidden),
                nn.ReLU6(inplace=True),
            ]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, planes, 1, bias=False),
            nn.BatchNorm2d(planes),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """arXiv:1801.04381, table 2: float32[N, 3, 224, 224] -> float32[N, classes]."""

    # expansion, channels, repeats, stride
    STAGES = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        planes = 32
        layers: list[nn.Module] = [
            nn.Conv2d(3, planes, 3, 2, padding=1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU6(inplace=True),
        ]
        for expand, channels, repeats, stride in self.STAGES:
            for i in range(repeats):
                layers.append(InvertedResidual(planes, channels, stride if i == 0 else 1, expand))
                planes = channels
        layers += [nn.Conv2d(planes, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = nn.functional.adaptive_avg_pool2d(x, (1, 1))
        return self.classifier(torch.flatten(x, 1))
