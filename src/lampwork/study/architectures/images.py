"""Networks over images: a classifier, the U-Net of a diffusion model, and a detector."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lampwork.bench.networks.blocks import conv_norm
from lampwork.study.architectures.network import Inputs, Network


class _Residual(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inplanes, planes, 3, stride, activation=nn.ReLU)
        self.second = conv_norm(planes, planes, 3)
        self.across = (
            conv_norm(inplanes, planes, 1, stride) if stride > 1 or inplanes != planes else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(x)) + self.across(x))


class Convolutional(Network):
    """Residual blocks (arXiv:1512.03385): float32[N, 3, side, side] -> float32[N, classes]."""

    def __init__(self, width: int = 32, stages: int = 4, side: int = 48, classes: int = 100) -> None:
        super().__init__()
        self.side = side
        widths = [width << stage for stage in range(stages)]
        self.stem = conv_norm(3, width, 3, 2, activation=nn.ReLU)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(_Residual(a, b, 1 if a == b else 2), _Residual(b, b, 1))
                for a, b in zip((width, *widths), widths, strict=False)
            )
        )
        self.head = nn.Linear(widths[-1], classes)

    def example(self, batch: int) -> Inputs:
        return (torch.randn(batch, 3, self.side, self.side),)

    def features(self, x: Tensor) -> Tensor:
        return self.stages(self.stem(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class _Block(nn.Module):
    """Two normalized convolutions, with the time of the diffusion in between."""

    def __init__(self, inplanes: int, planes: int, times: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inplanes), nn.GroupNorm(8, planes)
        self.conv1, self.conv2 = (nn.Conv2d(each, planes, 3, padding=1) for each in (inplanes, planes))
        self.time = nn.Linear(times, planes)
        self.across = nn.Conv2d(inplanes, planes, 1) if inplanes != planes else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.across(x) + self.conv2(functional.silu(self.norm2(y)))


class _PixelAttention(nn.Module):
    def __init__(self, planes: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, planes)
        self.enter, self.leave = nn.Conv2d(planes, 3 * planes, 1), nn.Conv2d(planes, planes, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.enter(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1)).transpose(-1, -2)
        seen = functional.scaled_dot_product_attention(*parts.unbind(1))
        return x + self.leave(seen.transpose(-1, -2).flatten(1, 2).view_as(x))


class Diffusion(Network):
    """The U-Net of a diffusion model (arXiv:2006.11239): float32[N, 3, side, side] and its time float32[N] -> noise of
    the image's shape."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 96), side: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.side = side
        times = 4 * widths[0]
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.logspace(0, -4, widths[0] // 2))
        self.time = nn.Sequential(nn.Linear(widths[0], times), nn.SiLU(), nn.Linear(times, times), nn.SiLU())
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1)
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.down = nn.ModuleList(_Block(a, b, times) for a, b in pairs)
        self.smaller = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for b in widths[:-1])
        self.middle = nn.ModuleList([_Block(widths[-1], widths[-1], times) for _ in range(2)])
        self.attention = _PixelAttention(widths[-1], heads)
        self.up = nn.ModuleList(_Block(2 * b, a, times) for a, b in reversed(pairs))
        self.norm = nn.GroupNorm(8, widths[0])
        self.head = nn.Conv2d(widths[0], 3, 3, padding=1)

    def example(self, batch: int) -> Inputs:
        return (torch.randn(batch, 3, self.side, self.side), torch.rand(batch) * 1000)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * self.frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x = self.stem(x)
        skips: list[Tensor] = []
        for number, block in enumerate(self.down):
            x = block(x, time)
            skips.append(x)
            if number < len(self.smaller):
                x = self.smaller[number](x)
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        for number, block in enumerate(self.up):
            if number:
                x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips.pop()], 1), time)
        return self.head(functional.silu(self.norm(x)))


class Detector(Network):
    """Classes and boxes at each place of a feature map, the best of them, and none that overlaps a better one
    (arXiv:1904.02689): float32[N, 3, side, side] -> scores and boxes, float32[N, most] and float32[N, most, 4]."""

    def __init__(
        self, width: int = 32, stages: int = 3, side: int = 64, classes: int = 20, most: int = 60
    ) -> None:
        super().__init__()
        self.side, self.most = side, most
        self.backbone = Convolutional(width, stages, side)
        planes = width << (stages - 1)
        self.classes = nn.Sequential(
            conv_norm(planes, planes, 3, activation=nn.ReLU), nn.Conv2d(planes, classes, 1)
        )
        self.boxes = nn.Sequential(conv_norm(planes, planes, 3, activation=nn.ReLU), nn.Conv2d(planes, 4, 1))
        self.centers: Tensor
        places = (torch.arange(side >> stages) + 0.5) / (side >> stages)
        self.register_buffer("centers", torch.cartesian_prod(places, places))

    def example(self, batch: int) -> Inputs:
        return (torch.randn(batch, 3, self.side, self.side),)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.backbone.features(images)
        scores = torch.sigmoid(self.classes(found)).flatten(2).amax(1)
        sides = torch.sigmoid(self.boxes(found)).flatten(2).transpose(1, 2) / 4
        boxes = torch.cat([self.centers - sides[..., :2], self.centers + sides[..., 2:]], -1)
        scores, order = scores.topk(self.most, -1)
        boxes = boxes.gather(1, order[..., None].expand(-1, -1, 4))
        low = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
        high = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
        both = (high - low).clamp(min=0).prod(-1)
        area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
        overlap = both / (area[:, :, None] + area[:, None] - both)
        worst = overlap.triu(1).amax(1)  # with a better box
        return torch.where(worst < 0.5, scores, 0.0), boxes
