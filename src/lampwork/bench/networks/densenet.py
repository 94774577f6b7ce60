"""DenseNet-121, as its paper and torchvision define it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class _Layer(nn.Module):
    """Norm, 1x1, norm, 3x3: [N, inplanes, H, W] -> [N, growth, H, W] (arXiv:1608.06993, section 3)."""

    def __init__(self, inplanes: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inplanes)
        self.conv1 = nn.Conv2d(inplanes, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = torch.cat(features, 1)
        x = self.conv1(self.relu(self.norm1(x)))
        return self.conv2(self.relu(self.norm2(x)))


class _Block(nn.Module):
    """Layers each of which reads the block's input and the output of all layers before it."""

    def __init__(self, layers: int, inplanes: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(inplanes + i * growth, growth) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    """float32[N, 3, H, W] -> float32[N, classes]. `layers` (6, 12, 24, 16) with growth 32 is DenseNet-121."""

    def __init__(
        self, layers: Sequence[int] = (6, 12, 24, 16), growth: int = 32, planes: int = 64, classes: int = 1000
    ) -> None:
        super().__init__()
        parts: list[nn.Module] = [
            nn.Conv2d(3, planes, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        for i, count in enumerate(layers):
            parts.append(_Block(count, planes, growth))
            planes += count * growth
            if i + 1 < len(layers):
                parts += [
                    nn.BatchNorm2d(planes),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(planes, planes // 2, 1, bias=False),
                    nn.AvgPool2d(2, 2),
                ]
                planes //= 2
        parts += [nn.BatchNorm2d(planes), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Linear(planes, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(x, 1))
