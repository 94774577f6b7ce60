"""A decoder of Llama's kind that generates one token with a static cache."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """Root mean square norm (arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv:2104.09864): x [..., width], cos and sin [width]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.head, bias=False)
        self.value = nn.Linear(width, groups * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(
        self,
        x: Tensor,
        position: Tensor,
        turn: tuple[Tensor, Tensor],
        mask: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        batch = x.shape[0]
        y = self.norm1(x)
        query = rotated(self.query(y).view(batch, 1, self.heads, self.head).transpose(1, 2), *turn)
        key = rotated(self.key(y).view(batch, 1, self.groups, self.head).transpose(1, 2), *turn)
        value = self.value(y).view(batch, 1, self.groups, self.head).transpose(1, 2)
        keys.index_copy_(2, position, key)
        values.index_copy_(2, position, value)
        seen = nn.functional.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, 1, -1))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """One step of a decoder: (int64[N, 1] tokens, int64[1] position, cache) -> float32[N, 1, vocabulary].

    The cache, float32[layers, 2, N, groups, length, width / heads] of keys and values, is written in place at the
    position, so that a call leaves it as a repetition of the call does. What lies behind the position is not read.
    """

    def __init__(
        self,
        vocabulary: int = 32000,
        width: int = 512,
        inner: int = 1376,
        layers: int = 8,
        heads: int = 8,
        groups: int = 4,
        length: int = 512,
    ) -> None:
        super().__init__()
        self.cos: Tensor
        self.sin: Tensor
        self.order: Tensor
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(_Layer(width, heads, groups, inner) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        head = width // heads
        angles = torch.outer(torch.arange(length), 10000 ** (-torch.arange(0, head, 2) / head)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("order", torch.arange(length))
        self.cache_shape = (layers, 2, groups, length, head)

    def cache(self, batch: int = 1) -> Tensor:
        """A cache of random keys and values, as if all positions had been written."""
        layers, pair, groups, length, head = self.cache_shape
        return torch.randn(layers, pair, batch, groups, length, head)

    def forward(self, tokens: Tensor, position: Tensor, cache: Tensor) -> Tensor:
        x = self.embedding(tokens)
        turn = (self.cos[position], self.sin[position])
        mask = (self.order <= position)[None, None, None, :]
        for i, layer in enumerate(self.layers):
            x = layer(x, position, turn, mask, cache[i, 0], cache[i, 1])
        return self.head(self.norm(x))
