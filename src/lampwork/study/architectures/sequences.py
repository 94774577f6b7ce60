"""Networks over sequences: recurrent, attention, an encoder, a decoder with a cache, experts, a state space."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lampwork.bench.networks import Decoder as Llama
from lampwork.study.architectures.network import Inputs, Network


class Recurrent(Network):
    """Embeddings, an LSTM of several layers, a word at each place: int64[N, length] -> float32[N, length, words]."""

    def __init__(self, words: int = 2000, width: int = 256, layers: int = 2, length: int = 48) -> None:
        super().__init__()
        self.words, self.length = words, length
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, words)

    def example(self, batch: int) -> Inputs:
        return (torch.randint(self.words, (batch, self.length)),)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.layers(self.embedding(tokens))
        return self.head(states)


class Attention(Network):
    """Causal attention with its projections: float32[N, length, width] -> the same."""

    def __init__(self, width: int = 256, heads: int = 4, length: int = 256) -> None:
        super().__init__()
        self.width, self.heads, self.length = width, heads, length
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def example(self, batch: int) -> Inputs:
        return (torch.randn(batch, self.length, self.width),)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


class _EncoderLayer(nn.Module):
    """Attention with a mask and a feed-forward block, each normalized after its residual sum."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        # Written out, as it was before torch had a function for it.
        scores = query @ key.transpose(-1, -2) / (query.shape[-1] ** 0.5) + mask
        seen = torch.softmax(scores, -1) @ value
        x = self.norm1(x + self.out(seen.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Encoder(Network):
    """Of BERT's kind (arXiv:1810.04805): int64[N, length] tokens and mask -> float32[N, length, width]."""

    def __init__(
        self,
        words: int = 4000,
        width: int = 256,
        heads: int = 4,
        inner: int = 1024,
        layers: int = 2,
        length: int = 64,
    ) -> None:
        super().__init__()
        self.words, self.length = words, length
        self.embedding, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(_EncoderLayer(width, heads, inner) for _ in range(layers))

    def example(self, batch: int) -> Inputs:
        mask = torch.ones(batch, self.length, dtype=torch.long)
        mask[-1, self.length * 3 // 4 :] = 0
        return (torch.randint(self.words, (batch, self.length)), mask)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.norm(self.embedding(tokens) + self.places.weight[: tokens.shape[1]])
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, hidden)
        return x


class Decoder(Network):
    """One step of a decoder of Llama's kind, with keys and values of the steps before in a cache that it writes to:
    int64[N, 1] token, int64[1] place, cache -> float32[N, 1, words]."""

    def __init__(
        self,
        words: int = 8000,
        width: int = 512,
        inner: int = 1376,
        layers: int = 4,
        heads: int = 8,
        groups: int = 4,
        length: int = 256,
    ) -> None:
        super().__init__()
        self.words, self.length = words, length
        self.decoder = Llama(words, width, inner, layers, heads, groups, length)

    def example(self, batch: int) -> Inputs:
        token = torch.randint(self.words, (batch, 1))
        return (token, torch.tensor([self.length * 3 // 4]), self.decoder.cache(batch))

    def forward(self, token: Tensor, place: Tensor, cache: Tensor) -> Tensor:
        return self.decoder(token, place, cache)


class Experts(Network):
    """A mixture of experts (arXiv:1701.06538): a gate sends each token to its best few, and each expert computes the
    tokens that came to it: float32[N, length, width] -> the same. How many those are, only the data says."""

    def __init__(
        self, width: int = 256, inner: int = 512, experts: int = 8, chosen: int = 2, length: int = 64
    ) -> None:
        super().__init__()
        self.width, self.length, self.chosen = width, length, chosen
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, width)) for _ in range(experts)
        )

    def example(self, batch: int) -> Inputs:
        return (torch.randn(batch, self.length, self.width),)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(0, 1)
        weights, chosen = torch.softmax(self.gate(tokens), -1).topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            mixed.index_add_(0, token, expert(tokens[token]) * weights[token, place, None])
        return x + mixed.view_as(x)


class StateSpace(Network):
    """A selective state space (arXiv:2312.00752), its scan step by step: float32[N, length, width] -> the same."""

    def __init__(
        self, width: int = 128, inner: int = 256, states: int = 16, rank: int = 8, length: int = 48
    ) -> None:
        super().__init__()
        self.width, self.length, self.states, self.rank = width, length, states, rank
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, 2 * inner, bias=False)
        self.near = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, rank + 2 * states, bias=False)
        self.step = nn.Linear(rank, inner)
        self.decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.leave = nn.Linear(inner, width, bias=False)

    def example(self, batch: int) -> Inputs:
        return (torch.randn(batch, self.length, self.width),)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.enter(self.norm(x)).chunk(2, -1)
        u = functional.silu(self.near(u.transpose(1, 2))[..., : self.length].transpose(1, 2))
        step, into, out = self.select(u).split([self.rank, self.states, self.states], -1)
        step = functional.softplus(self.step(step))
        kept = torch.exp(step[..., None] * -self.decay.exp())  # [N, length, inner, states]
        given = (step * u)[..., None] * into[:, :, None]
        state = torch.zeros_like(given[:, 0])
        seen: list[Tensor] = []
        for at in range(self.length):
            state = kept[:, at] * state + given[:, at]
            seen.append((state * out[:, at, None]).sum(-1))
        y = torch.stack(seen, 1) + u * self.skip
        return x + self.leave(y * functional.silu(gate))
