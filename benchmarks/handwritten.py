"""What it costs to write a network out by hand: BERT-base with attention, GELU and layer norm as formulas, against the
same network in torch's fused operators. Both are compiled by Lampwork.

    python benchmarks/handwritten.py [--layers 12] [--tokens 128] [--threads 1 2] [--rounds 40] [--json FILE]
    python benchmarks/handwritten.py --without library,rewrites

Both run in one process, turn about, so that they meet the same neighbours and clock. Printed are the medians in
milliseconds and the median over the turns of their ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lampwork


class LayerNormByFormula(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.bias = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-12) * self.weight + self.bias


class LayerNorm(LayerNormByFormula):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, 1e-12)


def gelu_by_formula(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def attention_by_formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.size(-1))
    return torch.matmul(torch.softmax(scores + mask, dim=-1), value)


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Layer(nn.Module):
    """One encoder layer; `by_formula` says how it is spelled."""

    def __init__(self, width: int, heads: int, by_formula: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        norm = LayerNormByFormula if by_formula else LayerNorm
        self.norm, self.final_norm = norm(width), norm(width)
        self.dropout = nn.Dropout(0.1)
        self.attend: Callable[..., Tensor] = attention_by_formula if by_formula else attention
        self.gelu: Callable[[Tensor], Tensor] = gelu_by_formula if by_formula else F.gelu

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        context = self.attend(query, key, value, mask).transpose(1, 2).reshape(x.shape)
        x = self.norm(x + self.dropout(self.out(context)))
        return self.final_norm(x + self.dropout(self.down(self.gelu(self.up(x)))))


class Bert(nn.Module):
    """The encoder of BERT. tokens: int64[batch, length]; mask: bool[batch, length], False for padding."""

    def __init__(self, by_formula: bool, width: int = 768, heads: int = 12, layers: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, width), nn.Embedding(512, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = (LayerNormByFormula if by_formula else LayerNorm)(width)
        self.layers = nn.ModuleList(Layer(width, heads, by_formula) for _ in range(layers))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        x = self.words(tokens) + self.places(places) + self.kinds(torch.zeros_like(tokens))
        x = self.norm(x)
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, added)
        return x


def build(layers: int, width: int = 768, heads: int = 12) -> tuple[Bert, Bert]:
    """(written out by hand, in fused operators), with the same weights."""
    by_hand = Bert(True, width, heads, layers).eval()
    fused = Bert(False, width, heads, layers).eval()
    fused.load_state_dict(by_hand.state_dict())
    return by_hand, fused


def compare(first: Callable[..., Any], second: Callable[..., Any], inputs: Sequence[Tensor], rounds: int):
    """(median seconds of the first, of the second, median of the ratios), turn about."""
    for fn in (first, second):
        for _ in range(3):
            fn(*inputs)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        pairs = list(zip((first, second), times, strict=True))
        for fn, spent in pairs if turn % 2 else reversed(pairs):
            begin = time.perf_counter()
            fn(*inputs)
            spent.append(time.perf_counter() - begin)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return statistics.median(times[0]), statistics.median(times[1]), ratio


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    by_hand, fused = build(options.layers)
    tokens = torch.randint(0, 30522, (1, options.tokens))
    mask = torch.ones(1, options.tokens, dtype=torch.bool)
    mask[:, -8:] = False
    switches = ",".join(f"-{name}" for name in options.without.split(",") if name)
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        compiled = lampwork.compile(by_hand, options={"passes": switches}), lampwork.compile(fused)
        results = [fn(tokens, mask) for fn in compiled]
        difference = float((results[0] - results[1]).abs().max())
        hand_s, fused_s, ratio = compare(*compiled, (tokens, mask), options.rounds)
        rows.append(
            {
                "threads": threads,
                "by_hand_ms": hand_s * 1e3,
                "fused_ms": fused_s * 1e3,
                "ratio": ratio,
                "difference": difference,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--without", default="", help="passes switched off for the one written by hand")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with torch.no_grad():
        rows = measure(options)
    for row in rows:
        print(
            f"{row['threads']} threads: by hand {row['by_hand_ms']:8.2f} ms   fused {row['fused_ms']:8.2f} ms   "
            f"x {row['ratio']:.3f}   greatest difference {row['difference']:.1e}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
