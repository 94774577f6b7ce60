"""EfficientNet-B0, as its paper and torchvision define it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lampwork.bench.networks.blocks import SqueezeExcite, conv_norm


class _Block(nn.Module):
    """Expand, depthwise, squeeze and excite, project, with SiLU (arXiv:1905.11946, section 4)."""

    def __init__(self, inplanes: int, planes: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inplanes * expand
        self.residual = stride == 1 and inplanes == planes
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(conv_norm(inplanes, hidden, activation=nn.SiLU))
        layers += [
            conv_norm(hidden, hidden, kernel, stride, hidden, nn.SiLU),
            SqueezeExcite(hidden, max(1, inplanes // 4), nn.SiLU, nn.Sigmoid),
            conv_norm(hidden, planes),
        ]
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class EfficientNet(nn.Module):
    """arXiv:1905.11946, table 1: float32[N, 3, 224, 224] -> float32[N, classes]."""

    # expansion, channels, repeats, stride, kernel
    STAGES = (
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        planes = 32
        layers: list[nn.Module] = [conv_norm(3, planes, 3, 2, activation=nn.SiLU)]
        for expand, channels, repeats, stride, kernel in self.STAGES:
            for i in range(repeats):
                layers.append(_Block(planes, channels, kernel, stride if i == 0 else 1, expand))
                planes = channels
        layers.append(conv_norm(planes, 1280, activation=nn.SiLU))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(x, 1))
