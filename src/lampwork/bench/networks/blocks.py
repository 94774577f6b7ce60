"""What mobile networks are made of: normalized convolutions and squeeze-and-excitation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def conv_norm(
    inplanes: int,
    planes: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = None,
    eps: float = 1e-5,
) -> nn.Sequential:
    """A convolution padded to keep the size (over the stride), batch norm, and an activation if there is one."""
    layers: list[nn.Module] = [
        nn.Conv2d(inplanes, planes, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(planes, eps=eps),
    ]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


class SqueezeExcite(nn.Module):
    """Channels are scaled by a function of their means (arXiv:1709.01507): [N, C, H, W] -> [N, C, H, W]."""

    def __init__(
        self, planes: int, squeezed: int, activation: Callable[[], nn.Module], gate: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(planes, squeezed, 1)
        self.activation = activation()
        self.expand = nn.Conv2d(squeezed, planes, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.activation(self.reduce(self.pool(x)))
        return x * self.gate(self.expand(scale))
