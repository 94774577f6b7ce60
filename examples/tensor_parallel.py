"""Tensor parallelism: each process has a part of every weight, and all have the same batch.

`torchrun --nproc-per-node 2 examples/tensor_parallel.py`. Attention and feed-forward layers are divided by columns and
rows, and between them each process has a part of the sequence. The same steps in eager give the same losses.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import lampwork

WIDTH, HEAD, ROWS, BATCH, CLASSES = 128, 16, 32, 8, 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(x)))


def parallelize(net: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Weights become DTensors, and what is between the blocks is sharded by sequence."""
    plan: dict[str, Any] = {
        "blocks": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    for number in range(2):
        plan[f"blocks.{number}.before"] = plan[f"blocks.{number}.between"] = SequenceParallel()
        plan[f"blocks.{number}.attention"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        )
        for name in "qkv":
            plan[f"blocks.{number}.attention.{name}"] = ColwiseParallel()
        plan[f"blocks.{number}.up"] = ColwiseParallel(input_layouts=Shard(1))
        for name in ("attention.o", "down"):
            plan[f"blocks.{number}.{name}"] = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    return parallelize_module(net, mesh, plan)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """float32[BATCH, ROWS, WIDTH], and the class of each row: where the row before it is largest."""
    x = torch.randn(BATCH, ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
    return x, x.roll(1, 1).unflatten(2, (CLASSES, -1)).sum(3).argmax(2)


def train(
    mesh: DeviceMesh, steps: int, compile: Callable[[nn.Module], nn.Module]
) -> tuple[list[float], list[float]]:
    """(losses, seconds of each step)."""
    torch.manual_seed(0)
    model = compile(parallelize(Network(), mesh))  # the line
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    seconds: list[float] = []
    for step in range(steps):
        x, classes = batch(step)
        start = time.perf_counter()
        loss = F.cross_entropy(model(x).flatten(0, 1), classes.flatten())
        optimizer.zero_grad()
        loss.backward()
        seconds.append(time.perf_counter() - start)
        optimizer.step()
        losses.append(loss.item())
    return losses, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # rank, number of processes and address are torchrun's
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    eager, eager_seconds = train(mesh, steps, lambda net: net)
    losses, seconds = train(mesh, steps, lambda net: lampwork.compile(net))
    if dist.get_rank() == 0:
        far = max(abs(a - b) for a, b in zip(losses, eager, strict=True))
        print(f"{dist.get_world_size()} processes: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print(f"at most {far:.1e} from eager's")
        ours, theirs = min(seconds) * 1e3, min(eager_seconds) * 1e3
        print(f"forward and backward: eager {theirs:.1f} ms, compiled {ours:.1f} ms: {theirs / ours:.2f}x")
        stats = lampwork.stats()
        print(
            {name: stats[name] for name in ("breaks", "eager_calls", "compiled_backwards", "eager_backwards")}
        )
    gc.collect()  # the models are cycles that hold the group, whose threads abort Python's end where it still has any
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
