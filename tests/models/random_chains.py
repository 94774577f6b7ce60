"""Random chains of layers that draw random numbers, in whatever layout their operands come."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Function = Callable[[Tensor], Tensor]


class Step(nn.Module):
    """A function as a layer."""

    def __init__(self, name: str, function: Function) -> None:
        super().__init__()
        self.name = name
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


class Residual(nn.Module):
    """x + layer(x)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


class Attention(nn.Module):
    """Self-attention over the last two dimensions with dropout of the weights, heads by a view and a permutation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        split = self.inner(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = (split.select(-3, i).transpose(-3, -2) for i in range(3))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
        return mixed.transpose(-3, -2).flatten(-2)


class Chain(nn.Module):
    """The layers one after the other."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


# What draws. None of it looks at values that rounding may move to the other side of a threshold.
_DRAWING: dict[str, Function] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.6)),
    "bernoulli(p)": lambda x: x * torch.bernoulli(x.detach(), 0.6),
    "rand_like": lambda x: x + torch.rand_like(x),
    "rand_like of a view": lambda x: x + torch.rand_like(x.transpose(1, -1)).transpose(1, -1),
    "randn_like of a slice": lambda x: x[..., 1:] * torch.randn_like(x[..., 1:]),
    "randint_like": lambda x: x + torch.randint_like(x, 3),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "uniform_": lambda x: x * (x.detach() + 1).uniform_(0.5, 1.5),
    "exponential_": lambda x: x + torch.zeros_like(x).exponential_(),
    "rrelu": lambda x: x + F.rrelu(torch.randn_like(x), training=True),
    "poisson": lambda x: x + torch.poisson(torch.ones_like(x)),
    "normal": lambda x: x + torch.normal(torch.zeros_like(x), torch.ones_like(x)),
    "dropout of a slice": lambda x: F.dropout(x[..., :-1], 0.3),
    "dropout of every other": lambda x: F.dropout(x[:, ::2], 0.3) if x.shape[1] > 4 else F.dropout(x, 0.3),
    "dropout of a permutation": lambda x: F.dropout(x.transpose(1, -1), 0.3).transpose(1, -1),
    "dropout2d": lambda x: F.dropout2d(x if x.dim() == 4 else x[:, :, None], 0.3).reshape(x.shape),
}

_PLAIN: dict[str, Function] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "leaky_relu": F.leaky_relu,
    "sigmoid and sin": lambda x: x.sigmoid().sin() * 2,
    "transpose": lambda x: x.transpose(1, -1),
    "transpose(1, 2)": lambda x: x.transpose(1, 2),
    "slice": lambda x: x[..., :-1] if x.shape[-1] > 4 else x,
    "slice of rows": lambda x: x[:, :, 1:] if x.shape[2] > 4 else x,
    "contiguous": lambda x: x.contiguous(),
    "flip": lambda x: x.flip(-1),
    "cat": lambda x: torch.cat([x, x * 2], 1) if x.shape[1] < 17 else x,
}

_PLANE: dict[str, Function] = {
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "permute back": lambda x: x.permute(0, 3, 1, 2),
    "max_pool": lambda x: F.max_pool2d(x, 2) if min(x.shape[2:]) > 7 else x,
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "flatten": lambda x: x.flatten(2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0) if min(x.shape[2:]) < 7 else x,
}

_ROWS: dict[str, Function] = {
    "unflatten": lambda x: x.unflatten(-1, (2, -1)) if x.shape[-1] % 2 == 0 and x.shape[-1] > 9 else x,
}


def _layers(x: Tensor) -> dict[str, Callable[[], nn.Module]]:
    """Layers with parameters that `x` fits."""
    channels, last = x.shape[1], x.shape[-1]
    found: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(last, 8 if last < 8 else last),
        "layer_norm": lambda: nn.LayerNorm(last),
        "group_norm": lambda: nn.GroupNorm(1, channels),
    }
    if last % 2 == 0 and x.shape[-2] <= 64:
        found["attention"] = lambda: Residual(Attention(last, 2))
    if x.dim() == 4:
        found["conv"] = lambda: nn.Conv2d(channels, 8, 3, padding=1)
        found["conv without padding"] = lambda: nn.Conv2d(channels, 12, (min(3, x.shape[2]), 1))
        found["residual conv"] = lambda: Residual(nn.Conv2d(channels, channels, 3, padding=1))
        found["batch_norm"] = lambda: nn.BatchNorm2d(channels)
    if x.dim() == 3:
        found["conv"] = lambda: nn.Conv1d(channels, 8, 3, padding=1)
        found["weight_norm"] = lambda: weight_norm(nn.Conv1d(channels, 8, 4, padding=2))
        found["batch_norm"] = lambda: nn.BatchNorm1d(channels)
    return found


def random_chain(rng: Random) -> tuple[nn.Module, Tensor]:
    """A model in train mode, and an argument for it."""
    x = torch.randn(2, 8, 9, 10) if rng.random() < 0.7 else torch.randn(2, 8, 40)
    if x.dim() == 4 and rng.random() < 0.3:
        x = x.contiguous(memory_format=torch.channels_last)
    elif rng.random() < 0.2:
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    layers: list[nn.Module] = []
    now = x
    for _ in range(rng.randint(9, 14)):
        layer = _random_layer(rng, now)
        if now.abs().max() > 50:
            layer = nn.Sequential(Step("tanh", torch.tanh), layer)
        layers.append(layer)
        with torch.no_grad():
            now = layer(now)
    return Chain(layers), x


def _random_layer(rng: Random, x: Tensor) -> nn.Module:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(list(_layers(x).values()))()
    plain = {**_PLAIN, **(_PLANE if x.dim() == 4 else _ROWS)}
    table = _DRAWING if kind < 0.75 else plain
    name = rng.choice(list(table))
    return Step(name, table[name])
