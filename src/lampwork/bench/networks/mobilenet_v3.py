"""MobileNetV3-Large, as its paper and torchvision define it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lampwork.bench.networks.blocks import SqueezeExcite, conv_norm


def _rounded(channels: float, divisor: int = 8) -> int:
    """The nearest multiple of `divisor` that is not more than a tenth below `channels`."""
    near = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * channels else near


class _Block(nn.Module):
    """Expand, depthwise, squeeze and excite, project (arXiv:1905.02244, figure 4)."""

    def __init__(
        self, inplanes: int, kernel: int, hidden: int, planes: int, excite: bool, hard: bool, stride: int
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and inplanes == planes
        activation = nn.Hardswish if hard else nn.ReLU
        layers: list[nn.Module] = []
        if hidden != inplanes:
            layers.append(conv_norm(inplanes, hidden, activation=activation, eps=1e-3))
        layers.append(conv_norm(hidden, hidden, kernel, stride, hidden, activation, eps=1e-3))
        if excite:
            layers.append(SqueezeExcite(hidden, _rounded(hidden // 4), nn.ReLU, nn.Hardsigmoid))
        layers.append(conv_norm(hidden, planes, eps=1e-3))
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV3(nn.Module):
    """arXiv:1905.02244, table 1: float32[N, 3, 224, 224] -> float32[N, classes]."""

    # kernel, hidden channels, channels, squeeze and excite, hard swish, stride
    BLOCKS = (
        (3, 16, 16, False, False, 1),
        (3, 64, 24, False, False, 2),
        (3, 72, 24, False, False, 1),
        (5, 72, 40, True, False, 2),
        (5, 120, 40, True, False, 1),
        (5, 120, 40, True, False, 1),
        (3, 240, 80, False, True, 2),
        (3, 200, 80, False, True, 1),
        (3, 184, 80, False, True, 1),
        (3, 184, 80, False, True, 1),
        (3, 480, 112, True, True, 1),
        (3, 672, 112, True, True, 1),
        (5, 672, 160, True, True, 2),
        (5, 960, 160, True, True, 1),
        (5, 960, 160, True, True, 1),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        planes = 16
        layers: list[nn.Module] = [conv_norm(3, planes, 3, 2, activation=nn.Hardswish, eps=1e-3)]
        for kernel, hidden, channels, excite, hard, stride in self.BLOCKS:
            layers.append(_Block(planes, kernel, hidden, channels, excite, hard, stride))
            planes = channels
        layers.append(conv_norm(planes, 960, activation=nn.Hardswish, eps=1e-3))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(960, 1280), nn.Hardswish(inplace=True), nn.Dropout(0.2), nn.Linear(1280, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(x, 1))
