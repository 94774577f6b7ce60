"""Training: the loop stays as it is, its network is compiled in one line.

A transformer learns to reverse sequences, made on the spot; the same steps in eager give the same losses.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lampwork

TOKENS, LENGTH, BATCH = 32, 16, 32


class Reverser(nn.Module):
    """int64[N, LENGTH] -> float32[N, LENGTH, TOKENS]: scores of the sequence read backwards."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.positions = nn.Parameter(torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(width, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.layers(self.embedding(x) + self.positions))


def batches(count: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randint(0, TOKENS, (BATCH, LENGTH), generator=generator)


def train(steps: int, compile: Callable[[nn.Module], nn.Module]) -> tuple[list[float], list[float], float]:
    """(losses, seconds of each step, the part of tokens that are right in evaluation)."""
    torch.manual_seed(0)
    net = Reverser()
    model = compile(net)  # the line
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    losses: list[float] = []
    seconds: list[float] = []
    for x in batches(steps):
        start = time.perf_counter()
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    model.eval()
    with torch.no_grad():
        x = next(batches(1))
        right = (model(x).argmax(-1) == x.flip(1)).float().mean().item()
    return losses, seconds, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    eager, eager_seconds, _ = train(steps, lambda net: net)
    losses, seconds, right = train(steps, lambda net: lampwork.compile(net))
    far = max(abs(a - b) for a, b in zip(losses, eager, strict=True))
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}, at most {far:.1e} from eager's; {right:.0%} right")
    print(f"first step {seconds[0]:.2f} s, second {seconds[1]:.2f} s")
    ours, theirs = min(seconds) * 1e3, min(eager_seconds) * 1e3
    print(f"a step: eager {theirs:.1f} ms, compiled {ours:.1f} ms: {theirs / ours:.2f}x")
    stats = lampwork.stats()
    print({name: stats[name] for name in ("eager_calls", "compiled_backwards", "eager_backwards")})


if __name__ == "__main__":
    main()
