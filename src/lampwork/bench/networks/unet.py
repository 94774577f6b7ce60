"""A U-Net for segmentation: transposed convolutions and bilinear upsampling on the way up, skips by concatenation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _double(inplanes: int, planes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inplanes, planes, 3, padding=1, bias=False),
        nn.BatchNorm2d(planes),
        nn.ReLU(inplace=True),
        nn.Conv2d(planes, planes, 3, padding=1, bias=False),
        nn.BatchNorm2d(planes),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """arXiv:1505.04597, padded and with batch norm: float32[N, 3, H, W] -> float32[N, classes, H, W].

    The lower half of the way up uses transposed convolutions, as the paper does; the upper half upsamples bilinearly
    and convolves, as many of its successors do. H and W are multiples of 2 ** (len(widths) - 1).
    """

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256, 512), classes: int = 21) -> None:
        super().__init__()
        self.down = nn.ModuleList(_double(a, b) for a, b in zip((3, *widths[:-1]), widths, strict=True))
        self.pool = nn.MaxPool2d(2)
        pairs = [(widths[i], widths[i - 1]) for i in range(len(widths) - 1, 0, -1)]
        learned = len(pairs) // 2
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 2, stride=2)
            if i < learned
            else nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
                nn.Conv2d(a, b, 3, padding=1),
            )
            for i, (a, b) in enumerate(pairs)
        )
        self.merge = nn.ModuleList(_double(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)
