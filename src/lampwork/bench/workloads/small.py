"""Functions of a few operators: on small tensors, where the cost of a call shows, and on large ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lampwork.bench.workloads.workload import Maker


def lerp(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return w * x + (1 - w) * y


def mse(x: Tensor, y: Tensor) -> Tensor:
    z = (x - y) ** 2
    return z.sum()


def triple_add(x: Tensor) -> Tensor:
    return x + x + x


def gelu_chain(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x * 2 + y) * torch.sigmoid(y) + x


def mish(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


def softplus_chain(x: Tensor, y: Tensor) -> Tensor:
    return F.softplus(x * 1.5 + y) * torch.exp(-y * y) + x


def silu_chain(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x + 0.5) * y + F.silu(y) * x


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores * 0.125 + mask, dim=-1)


def relu(x: Tensor) -> Tensor:
    return torch.relu(x)


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def total(x: Tensor) -> Tensor:
    return x.sum()


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


class ResidualLayerNorm(nn.Module):
    """[N, width], [N, width] -> [N, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.norm(x + residual)


def mlp() -> nn.Module:
    """float32[N, 64] -> float32[N, 10]."""
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    ).eval()


def _numbers(*shape: int, count: int = 1) -> tuple[Tensor, ...]:
    return tuple(torch.randn(*shape) for _ in range(count))


SMALL: dict[str, Maker] = {
    "relu": lambda: (relu, _numbers(200)),
    "add": lambda: (add, _numbers(200, count=2)),
    "softmax": lambda: (softmax, _numbers(8, 32)),
    "sum": lambda: (total, _numbers(200)),
    "layer_norm": lambda: (layer_norm, (*_numbers(8, 64), *_numbers(64, count=2))),
    "lerp": lambda: (lerp, (torch.randn(200), torch.randn(200), torch.rand(200))),
    "mse": lambda: (mse, _numbers(200, count=2)),
    "triple_add": lambda: (triple_add, (torch.rand(4, 4),)),
    "mlp": lambda: (mlp(), _numbers(8, 64)),
}

LARGE: dict[str, Maker] = {
    "gelu_chain": lambda: (gelu_chain, _numbers(1024, 1024, count=2)),
    "mish": lambda: (mish, _numbers(1024, 1024)),
    "softplus_chain": lambda: (softplus_chain, _numbers(1024, 1024, count=2)),
    "silu_chain": lambda: (silu_chain, _numbers(1024, 1024, count=2)),
    "masked_softmax": lambda: (
        masked_softmax,
        (torch.randn(12, 256, 256), torch.zeros(256, 256).masked_fill(torch.rand(256, 256) < 0.2, -1e9)),
    ),
    "residual_layer_norm": lambda: (ResidualLayerNorm(768).eval(), _numbers(512, 768, count=2)),
}
