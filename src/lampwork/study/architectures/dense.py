"""Networks that are mostly linear layers: feed-forward, and a recommender with tables of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lampwork.study.architectures.network import Inputs, Network


class FeedForward(Network):
    """Normalized residual blocks of two linear layers: float32[N, width] -> float32[N, classes]."""

    def __init__(self, width: int = 512, inner: int = 2048, blocks: int = 4, classes: int = 100) -> None:
        super().__init__()
        self.width = width
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, inner),
                nn.GELU(),
                nn.Linear(inner, width),
                nn.Dropout(0.1),
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, classes)

    def example(self, batch: int) -> Inputs:
        return (torch.randn(batch, self.width),)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return torch.log_softmax(self.head(x), -1)


class Recommender(Network):
    """A click predictor (arXiv:1906.00091): numbers through linear layers, ids through bags of embeddings, all pairs of
    their inner products, and linear layers again: float32[N, numbers], int64[N, tables, ids] -> float32[N]."""

    def __init__(
        self,
        numbers: int = 13,
        tables: int = 16,
        rows: int = 20000,
        width: int = 64,
        ids: int = 16,
        inner: int = 1024,
    ) -> None:
        super().__init__()
        self.numbers, self.rows, self.ids = numbers, rows, ids
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="mean") for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(numbers, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, width)
        )
        self.pairs: Tensor
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))
        self.top = nn.Sequential(
            nn.Linear(width + self.pairs.shape[1], inner),
            nn.ReLU(),
            nn.Linear(inner, inner),
            nn.ReLU(),
            nn.Linear(inner, 1),
        )

    def example(self, batch: int) -> Inputs:
        return (
            torch.randn(batch, self.numbers),
            torch.randint(self.rows, (batch, len(self.tables), self.ids)),
        )

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        bags = [table(ids[:, number]) for number, table in enumerate(self.tables)]
        features = torch.stack([dense, *bags], 1)
        products = torch.bmm(features, features.transpose(1, 2))
        mixed = torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)
        return torch.sigmoid(self.top(mixed)).squeeze(-1)
