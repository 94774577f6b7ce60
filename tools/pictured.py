"""The model of the pictures in docs/pictures: two blocks of an encoder, and a check that breaks the graph."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lampwork


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention, self.norm, self.norm2 = Attention(width, 4), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.attention(x))
        return self.norm2(x + self.down(F.gelu(self.up(x))) * 1.0)


class Classifier(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        if not torch.isfinite(x).all():
            raise ValueError("the encoder diverged")
        return self.head(x.mean(1)).softmax(-1)


torch.manual_seed(0)
model = lampwork.compile(Classifier().eval())
tokens = torch.randint(0, 1000, (2, 64))
with torch.no_grad():
    for _ in range(200):
        model(tokens)
