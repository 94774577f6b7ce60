"""Training on several processes: each has a part of every batch, and gradients are averaged while backward runs.

`torchrun --nproc-per-node 2 examples/train_distributed.py`. The same steps in eager give the same losses.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lampwork

WIDTH, CLASSES, BATCH = 64, 8, 64


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """float32[BATCH, WIDTH] and the classes int64[BATCH]: which part of a row has the largest sum."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, x.unflatten(1, (CLASSES, -1)).sum(2).argmax(1)


def train(
    rank: int, steps: int, compile: Callable[[nn.Module], nn.Module]
) -> tuple[list[float], list[float], float]:
    """(losses, seconds of each step, the part of the classes that are right in the end), of this process."""
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    model = DistributedDataParallel(compile(net))  # the line
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    losses: list[float] = []
    seconds: list[float] = []
    right = 0.0
    for step in range(steps):
        x, classes = batch(step, rank)
        start = time.perf_counter()
        scores = model(x)
        loss = F.cross_entropy(scores, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        right = (scores.argmax(1) == classes).float().mean().item()
    return losses, seconds, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # rank, number of processes and address are torchrun's
    rank = dist.get_rank()
    eager, eager_seconds, _ = train(rank, steps, lambda net: net)
    losses, seconds, right = train(rank, steps, lambda net: lampwork.compile(net))
    far = torch.tensor(max(abs(a - b) for a, b in zip(losses, eager, strict=True)))
    dist.all_reduce(far, dist.ReduceOp.MAX)
    if rank == 0:
        print(
            f"{dist.get_world_size()} processes: loss {losses[0]:.4f} to {losses[-1]:.4f}, {right:.0%} right"
        )
        print(f"at most {far:.1e} from eager's")
        ours, theirs = min(seconds) * 1e3, min(eager_seconds) * 1e3
        print(f"a step: eager {theirs:.1f} ms, compiled {ours:.1f} ms: {theirs / ours:.2f}x")
        stats = lampwork.stats()
        print({name: stats[name] for name in ("eager_calls", "compiled_backwards", "eager_backwards")})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
