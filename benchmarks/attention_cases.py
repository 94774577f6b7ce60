"""Models for `rewrites.py`: attention that is written out, rotary embeddings, sums of embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Function(nn.Module):
    """A function of buffers and of what it is called with."""

    def __init__(self, fn: Callable[..., Any], *buffers: Tensor) -> None:
        super().__init__()
        self.fn = fn
        self.count = len(buffers)
        for number, buffer in enumerate(buffers):
            self.register_buffer(f"buffer{number}", buffer)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.fn(*inputs, *(getattr(self, f"buffer{number}") for number in range(self.count)))


def merged(heads: Tensor) -> Tensor:
    """[batch, heads, rows, size] as [batch, rows, heads * size], as the closing projection reads it."""
    return heads.transpose(1, 2).reshape(heads.shape[0], heads.shape[2], -1)


def attention(
    fn: Callable[..., Tensor], *buffers: Tensor, batch: int = 1, heads: int = 12, rows: int = 128
) -> Callable[[], Made]:
    def make() -> Made:
        inputs = tuple(torch.randn(batch, heads, rows, 64) for _ in range(3))
        return Function(lambda *a: merged(fn(*a)), *buffers).eval(), inputs

    return make


def bert(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(64)
    return F.softmax(scores + (1.0 - mask) * torch.finfo(torch.float32).min, -1) @ v


def gpt(q: Tensor, k: Tensor, v: Tensor, tril: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) * (1.0 / math.sqrt(64))
    return F.softmax(scores.masked_fill(tril[:, :, :128, :128] == 0, -math.inf), -1) @ v


def t5(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) + bias + mask
    return F.softmax(scores.float(), -1).type_as(scores) @ v


def vit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * 64**-0.5) @ k.transpose(-2, -1)).softmax(-1) @ v


def swin(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    scores = (q * 32**-0.5) @ k.transpose(-2, -1) + bias[None]
    windows = mask.shape[0]
    scores = scores.view(-1, windows, *scores.shape[1:]) + mask[:, None][None]
    return scores.view(-1, *scores.shape[2:]).softmax(-1) @ v


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) / 8).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v)


def repeated(x: Tensor, times: int) -> Tensor:
    batch, heads, rows, size = x.shape
    wide = x[:, :, None].expand(batch, heads, times, rows, size)
    return wide.reshape(batch, heads * times, rows, size)


def llama(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ repeated(k, 4).transpose(2, 3) * 64**-0.5
    return F.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ repeated(v, 4)


def fused_llama(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, repeated(k, 4), repeated(v, 4))


def shared(fn: Callable[..., Tensor], rows: int, columns: int) -> Callable[[], Made]:
    def make() -> Made:
        keys, values = torch.randn(1, 4, columns, 64), torch.randn(1, 4, columns, 64)
        return Function(lambda *a: merged(fn(*a))).eval(), (torch.randn(1, 16, rows, 64), keys, values)

    return make


def by_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x[..., :32], x[..., 32:]
    return x * cos + torch.cat((-high, low), -1) * sin


def by_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    (low, high), cos, sin = x.chunk(2, -1), cos[..., :32], sin[..., :32]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def by_two(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


def by_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cos, sin = cos[..., :32], sin[..., :32]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def rotary(fn: Callable[..., Tensor]) -> Callable[[], Made]:
    def make() -> Made:
        angles = torch.randn(1, 1, 128, 64)

        def heads(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return fn(x.view(1, 128, 8, 64).transpose(1, 2), cos, sin)

        return Function(heads, angles.cos(), angles.sin()).eval(), (torch.randn(1, 128, 512),)

    return make


def embedded(tokens: Tensor, words: Tensor, places: Tensor, kinds: Tensor, gain: Tensor) -> Tensor:
    known = F.embedding(torch.arange(tokens.shape[1]), places)
    x = F.embedding(tokens, words) + F.embedding(torch.zeros_like(tokens), kinds) + known
    return F.layer_norm(x, x.shape[-1:], gain)


def embeddings() -> Made:
    tables = (torch.randn(30522, 768), torch.randn(512, 768), torch.randn(2, 768), torch.rand(768))
    return Function(embedded, *tables).eval(), (torch.randint(0, 30522, (1, 128)),)


WRITTEN_OUT = ("written_out_attention",)
CASES: tuple[tuple[str, tuple[str, ...], Callable[[], Made]], ...] = (
    ("attention of BERT", WRITTEN_OUT, attention(bert, torch.ones(1, 1, 1, 128))),
    ("attention of GPT-2", WRITTEN_OUT, attention(gpt, torch.ones(1, 1, 1024, 1024).tril())),
    (
        "attention of T5",
        WRITTEN_OUT,
        attention(t5, torch.randn(1, 8, 128, 128), torch.zeros(4, 1, 1, 128), batch=4, heads=8),
    ),
    ("attention of ViT", WRITTEN_OUT, attention(vit, rows=197)),
    (
        "attention of Swin, shifted windows",
        WRITTEN_OUT,
        attention(swin, torch.randn(3, 49, 49), torch.zeros(64, 49, 49), batch=64, heads=3, rows=49),
    ),
    ("attention by einsum", WRITTEN_OUT, attention(einsum)),
    ("attention of Llama, 128 tokens", WRITTEN_OUT, shared(llama, 128, 128)),
    ("attention of Llama, token after 1024", WRITTEN_OUT, shared(llama, 1, 1024)),
    (
        "fused attention of repeated heads, 128 tokens",
        ("attention_of_repeated_heads",),
        shared(fused_llama, 128, 128),
    ),
    (
        "fused attention of repeated heads, token after 1024",
        ("attention_of_repeated_heads",),
        shared(fused_llama, 1, 1024),
    ),
    ("rotary embedding by halves put together (Llama)", ("rotate_half",), rotary(by_half)),
    ("rotary embedding by products of halves", ("rotate_halves",), rotary(by_halves)),
    ("rotary embedding by pairs put together (GPT-J)", ("rotate_pairs",), rotary(by_two)),
    ("rotary embedding by products of pairs", ("rotate_pairs_by_products",), rotary(by_pairs)),
    ("embeddings and layer norm of BERT", ("embedding_plus_constants",), embeddings),
)
