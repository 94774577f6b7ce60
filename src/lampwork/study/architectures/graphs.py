"""A network over the nodes and edges of graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lampwork.study.architectures.network import Inputs, Network


class MessagePassing(Network):
    """Each edge computes a message from its two ends, each node sums its messages (arXiv:1704.01212): float32[nodes,
    width], int64[2, edges] -> float32[nodes, width]. A sample is a graph of `nodes` nodes."""

    def __init__(self, width: int = 64, rounds: int = 3, nodes: int = 64, degree: int = 8) -> None:
        super().__init__()
        self.width, self.nodes, self.degree = width, nodes, degree
        self.messages = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(rounds)
        )
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(rounds)
        )
        self.norm = nn.LayerNorm(width)

    def example(self, batch: int) -> Inputs:
        edges = torch.randint(self.nodes, (batch, 2, self.nodes * self.degree))
        edges = edges + self.nodes * torch.arange(batch)[:, None, None]
        return (torch.randn(batch * self.nodes, self.width), edges.transpose(0, 1).reshape(2, -1))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, sink = edges[0], edges[1]
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([nodes[source], nodes[sink]], -1))
            got = torch.zeros_like(nodes).index_add_(0, sink, sent)
            nodes = nodes + update(torch.cat([nodes, got], -1))
        return self.norm(nodes)
