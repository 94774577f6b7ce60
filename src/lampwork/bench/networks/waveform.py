"""A network of 1-d convolutions over sound: the feature encoder of wav2vec 2.0, and a positional convolution."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class WaveEncoder(nn.Module):
    """arXiv:2006.11477, section 2: float32[N, samples] -> float32[N, frames, width]; 16,000 samples are 49 frames.

    The first convolution is normalized by group norm over time, the others by nothing, as in the base model. A grouped
    convolution of 128 taps is added as the paper's relative positions are.
    """

    KERNELS: Sequence[tuple[int, int]] = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
    """(kernel, stride) of each convolution."""

    def __init__(self, channels: int = 512, width: int = 768) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inplanes = 1
        for kernel, stride in self.KERNELS:
            layers.append(nn.Conv1d(inplanes, channels, kernel, stride, bias=False))
            if inplanes == 1:
                layers.append(nn.GroupNorm(channels, channels))
            layers.append(nn.GELU())
            inplanes = channels
        self.features = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(channels)
        self.projection = nn.Linear(channels, width)
        self.position = nn.Conv1d(width, width, 128, padding=64, groups=16)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x.unsqueeze(1)).transpose(1, 2)
        x = self.projection(self.norm(x))
        # An even kernel gives one frame too many.
        position = self.activation(self.position(x.transpose(1, 2))[:, :, :-1])
        return x + position.transpose(1, 2)
