"""Training on several processes (gloo): every rank compiles for itself, and gradients are averaged as eager's are."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

import lampwork
from lampwork.runtime import autograd

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without torch.distributed"
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.nn.functional.gelu(self.norm(self.first(x))))


def train(rank: int, world: int, port: int, compiled: bool, wrap: str, results: Any) -> None:
    torch.set_num_threads(1)
    autograd.SMALL_NODES = -1
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    torch.manual_seed(0)
    net: nn.Module = Net()
    if compiled and wrap == "inside":
        net = lampwork.compile(net)
    model: Any = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)
    step = lampwork.compile(model) if compiled and wrap == "outside" else model
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        step(torch.randn(8, 16, generator=generator)).square().mean().backward()
        optimizer.step()
    if rank == 0:
        results["parameters"] = [p.detach() for p in model.parameters()]
        results["stats"] = lampwork.stats()
    torch.distributed.destroy_process_group()


def trained(world: int, compiled: bool, wrap: str = "inside") -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(train, (world, port, compiled, wrap, results), nprocs=world)
        return dict(results)


@pytest.mark.skipif(sys.platform != "linux", reason="gloo over the loopback device")
@pytest.mark.parametrize("wrap", ["inside", "outside"])
def test_ranks_train_as_in_eager(wrap: str) -> None:
    eager, ours = trained(2, compiled=False), trained(2, compiled=True, wrap=wrap)
    for a, b in zip(eager["parameters"], ours["parameters"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    if (
        wrap == "inside"
    ):  # DistributedDataParallel.forward has Dynamo, and so Lampwork, leave its module alone
        assert ours["stats"]["compiled_backwards"] >= 3, ours["stats"]
