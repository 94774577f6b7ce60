"""Tasks of ranks: weights that are sharded (FSDP, tensor parallelism), and collectives inside compiled functions.

The reference is the same network, whole, on one process and in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lampwork

STEPS, BATCH, WIDTH = 4, 4, 16


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.last(nn.functional.gelu(self.first(x))))


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def network(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype)


def batches(rank: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, generator=generator)


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def reference(ranks: range) -> list[Tensor]:
    """The weights of the whole network, trained with the mean of the losses of these ranks."""
    net = network(torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for each in zip(*(batches(rank) for rank in ranks), strict=True):
        optimizer.zero_grad()
        torch.stack([net(x.double()).square().mean() for x in each]).mean().backward()
        optimizer.step()
    return [whole(p) for p in net.parameters()]


def train(model: Callable[[Tensor], Tensor], net: nn.Module, rank: int) -> list[Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in batches(rank):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [whole(p) for p in net.parameters()]


def close(ours: list[Tensor], wanted: list[Tensor]) -> None:
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-5)


def fully_sharded(rank: int, order: str) -> None:
    """order: what is compiled when. Gradients are averaged over ranks."""
    before = lampwork.stats()["compiled_backwards"]
    net = network()
    model: Any = net
    if order == "compiled, then sharded":
        model = lampwork.compile(net)
        fully_shard(model, mesh=mesh())
        assert isinstance(model, FSDPModule)
    elif order == "blocks compiled, then sharded":
        net.first, net.last = lampwork.compile(net.first), lampwork.compile(net.last)
        for block in (net.first, net.last, net):
            fully_shard(block, mesh=mesh())
    else:
        for block in (net.first, net.last, net):
            fully_shard(block, mesh=mesh())
        if order == "sharded, then compiled":
            model = lampwork.compile(net)
        else:
            net.first, net.last = lampwork.compile(net.first), lampwork.compile(net.last)
    close(train(model, net, rank), reference(range(dist.get_world_size())))
    assert lampwork.stats()["compiled_backwards"] - before >= (STEPS - 1) * (1 if model is not net else 2)


def sharded_in_half(rank: int) -> None:
    """Weights that are bfloat16 only while they are whole: eager's own result, to bfloat16's rounding."""
    found: list[list[Tensor]] = []
    for compiled in (False, True):
        net = network()
        model = lampwork.compile(net) if compiled else net
        fully_shard(model, mesh=mesh(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        found.append(train(model, net, rank))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def tensor_parallel(rank: int, order: str) -> None:
    """The layers' weights are DTensors; every rank has the same batch."""
    plan = {"first": ColwiseParallel(), "last": RowwiseParallel()}
    net = network()
    model: Any = net
    if order == "compiled before":
        model = lampwork.compile(net)
        model(torch.randn(BATCH, WIDTH)).sum().backward()  # a version for weights that are plain
        net.zero_grad()
    parallelize_module(net, mesh(), plan)
    if order == "compiled after":
        model = lampwork.compile(net)
    elif order == "blocks":
        net.first, net.last = lampwork.compile(net.first), lampwork.compile(net.last)
    close(train(model, net, 0), reference(range(1)))


def distributed_arguments(rank: int) -> None:
    """A version for a plain tensor does not serve a DTensor, as an argument, in a list, or as a weight."""

    def scaled(x: Tensor, others: list[Tensor]) -> Tensor:
        return (x * 2 + others[0]).sum(0)

    compiled = lampwork.compile(scaled)
    plain = torch.arange(32.0).reshape(8, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(plain, [plain]), scaled(plain, [plain]))
    for placement in (Shard(0), Shard(1), Replicate()):
        given = distribute_tensor(plain, mesh(), [placement])
        for _ in range(2):
            result = compiled(given, [given])
            assert type(result) is DTensor
            assert result.placements == scaled(given, [given]).placements
            torch.testing.assert_close(result.full_tensor(), scaled(plain, [plain]))
    layer = nn.Linear(4, 4)
    call = lampwork.compile(layer)
    expected = layer(plain)
    for _ in range(2):
        torch.testing.assert_close(call(plain), expected)
    for name, weight in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(distribute_tensor(weight.detach(), mesh(), [Replicate()])))
    result = call(distribute_tensor(plain, mesh(), [Replicate()]))
    assert type(result) is DTensor
    torch.testing.assert_close(result.full_tensor(), expected)


def all_reduced(x: Tensor) -> Tensor:
    return collectives.all_reduce(x, "sum", mesh())


def gathered(x: Tensor) -> Tensor:
    return collectives.all_gather_tensor(x, 0, mesh())


def scattered(x: Tensor) -> Tensor:
    return collectives.reduce_scatter_tensor(x, "sum", 0, mesh())


def in_place(x: Tensor) -> Tensor:
    summed = x.clone()
    dist.all_reduce(summed)
    return summed


def listed(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts)


COLLECTIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "all_reduce": all_reduced,
    "all_gather": gathered,
    "reduce_scatter": scattered,
    "in place": in_place,
    "listed": listed,
}


def collective(rank: int, name: str) -> None:
    """Between operators that are compiled, twice, so that the order on ranks counts."""
    reduce = COLLECTIVES[name]

    def function(x: Tensor) -> Tensor:
        y = torch.relu(reduce(x * 2) - 1)
        return reduce(y + 1).exp().sum() + (x * x).sum()

    compiled = lampwork.compile(function)
    rows = 4 * dist.get_world_size() ** 2
    for step in range(3):
        for dtype, call in ((torch.float32, compiled), (torch.float64, function)):
            generator = torch.Generator().manual_seed(10 * step + rank)
            x = (torch.randn(rows, 3, generator=generator) / 8).to(dtype).requires_grad_()
            result = call(x)
            (gradient,) = torch.autograd.grad(result, x)
            if call is compiled:
                ours = [result.double(), gradient.double()]
            else:
                close(ours, [result, gradient])  # pyright: ignore[reportPossiblyUnboundVariable]


TASKS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    **{
        f"fsdp: {order}": (fully_sharded, (order,))
        for order in (
            "compiled, then sharded",
            "blocks compiled, then sharded",
            "sharded, then compiled",
            "sharded, then blocks compiled",
        )
    },
    "fsdp in bfloat16": (sharded_in_half, ()),
    **{
        f"tensor parallel: {order}": (tensor_parallel, (order,))
        for order in ("compiled before", "compiled after", "blocks")
    },
    "DTensors as arguments": (distributed_arguments, ()),
    **{f"collective: {name}": (collective, (name,)) for name in COLLECTIVES},
}
