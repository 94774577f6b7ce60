"""ResNets, as their paper and torchvision define them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """A residual block of two 3x3 convolutions (arXiv:1512.03385, figure 5, left)."""

    expansion = 1

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        groups: int = 1,
        width: int = 64,
    ) -> None:
        super().__init__()
        if groups != 1 or width != 64:
            raise ValueError(f"a BasicBlock has groups 1 and width 64, not {groups} and {width}")
        self.conv1 = nn.Conv2d(inplanes, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3 and 1x1 convolutions (arXiv:1512.03385, figure 5), stride on the 3x3.

    groups, width: of the 3x3 convolution; 32 and 4 make a ResNeXt's block (arXiv:1611.05431).
    """

    expansion = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
        groups: int = 1,
        width: int = 64,
    ) -> None:
        super().__init__()
        inner = planes * width // 64 * groups
        self.conv1 = nn.Conv2d(inplanes, inner, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(
            inner, inner, kernel_size=3, stride=stride, padding=1, groups=groups, bias=False
        )
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, planes * self.expansion, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """float32[N, 3, H, W] -> float32[N, classes].

    layers: blocks of each stage. (3, 4, 6, 3) of `Bottleneck` is ResNet-50, with groups 32 and width 4 it is
    ResNeXt-50; (2, 2, 2, 2) of `BasicBlock` is ResNet-18.
    """

    def __init__(
        self,
        layers: Sequence[int] = (3, 4, 6, 3),
        classes: int = 1000,
        block: type[BasicBlock] | type[Bottleneck] = Bottleneck,
        groups: int = 1,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.inplanes = 64
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        kind = (block, groups, width)
        self.layer1 = self._stage(kind, 64, layers[0], 1)
        self.layer2 = self._stage(kind, 128, layers[1], 2)
        self.layer3 = self._stage(kind, 256, layers[2], 2)
        self.layer4 = self._stage(kind, 512, layers[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, classes)

    def _stage(
        self,
        kind: tuple[type[BasicBlock] | type[Bottleneck], int, int],
        planes: int,
        blocks: int,
        stride: int,
    ) -> nn.Sequential:
        block, groups, width = kind
        outplanes = planes * block.expansion
        downsample: nn.Module | None = None
        if stride != 1 or self.inplanes != outplanes:
            downsample = nn.Sequential(
                nn.Conv2d(self.inplanes, outplanes, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(outplanes),
            )
        first = block(self.inplanes, planes, stride, downsample, groups, width)
        self.inplanes = outplanes
        rest = (block(outplanes, planes, groups=groups, width=width) for _ in range(blocks - 1))
        return nn.Sequential(first, *rest)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)
