"""Tasks of ranks: loops of training under DistributedDataParallel, compiled, and the same in eager and float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import lampwork
from lampwork.errors import UnsupportedOpError

STEPS, BATCH, WIDTH = 4, 6, 16


class Net(nn.Module):
    """Blocks with skip connections between tied ends; of `branches` a call uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(3)
        )
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, branch: int | None = None) -> Tensor:
        x = self.ends(x)
        for block in self.blocks:
            x = x + block(x)
        for i, layer in enumerate(self.branches):
            x = layer(x) if branch in (None, i) else x
        return nn.functional.linear(x, self.ends.weight)


class Normed(nn.Sequential):
    """Its buffers are sent from the first rank to the others before each call."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(1, 4, 3, bias=False),
            nn.BatchNorm1d(4),
            nn.ReLU(),
            nn.Conv1d(4, 4, 3, bias=False),
            nn.BatchNorm1d(4),
            nn.Flatten(),
            nn.Linear(4 * (WIDTH - 4), 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, None])


Loop = Callable[[Any, torch.optim.Optimizer, Iterator[Tensor]], None]


def plain(model: Any, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]) -> None:
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def accumulating(model: Any, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]) -> None:
    for i, x in enumerate(batches):
        with contextlib.nullcontext() if i % 2 else model.no_sync():
            model(x).square().mean().backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


def several_calls(model: Any, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]) -> None:
    for x in batches:
        optimizer.zero_grad()
        (model(x).square().mean() + model(2 * x).mean()).backward()
        optimizer.step()


def branching(model: Any, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]) -> None:
    for i, x in enumerate(batches):
        optimizer.zero_grad()
        model(x, i % 2).square().mean().backward()
        optimizer.step()


def one_branch(model: Any, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]) -> None:
    for x in batches:
        optimizer.zero_grad()
        model(x, 0).square().mean().backward()
        optimizer.step()


def uneven(model: Any, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]) -> None:
    with Join([model]):
        plain(model, optimizer, list(batches)[: STEPS - dist.get_rank() % 2])  # pyright: ignore


def sizes(model: Any, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]) -> None:
    """Each rank compiles for sizes of its own, and in steps of its own."""
    for i, x in enumerate(batches):
        optimizer.zero_grad()
        model(x[: 2 + i * dist.get_rank() % 3]).square().mean().backward()
        optimizer.step()


LOOPS: dict[str, tuple[Loop, dict[str, Any]]] = {
    "plain": (plain, {}),
    "accumulating": (accumulating, {}),
    "several_calls": (several_calls, {}),
    "views": (plain, {"gradient_as_bucket_view": True}),
    "static_graph": (one_branch, {"static_graph": True}),
    "unused": (branching, {"find_unused_parameters": True}),
    "unused_views": (branching, {"find_unused_parameters": True, "gradient_as_bucket_view": True}),
    "uneven": (uneven, {}),
    "sizes": (sizes, {}),
    "normed": (plain, {}),
    "whole": (plain, {"bucket_cap_mb": 25}),
}


def batches(rank: int, dtype: torch.dtype) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, generator=generator).to(dtype)


def trained(rank: int, name: str, dtype: torch.dtype, order: str) -> list[Tensor]:
    """The weights and buffers after the loop. order: what is compiled, the module "inside", the wrapper "outside", or
    "nothing"."""
    loop, given = LOOPS[name]
    torch.manual_seed(0)
    net: nn.Module = (Normed() if name == "normed" else Net()).to(dtype)
    net = lampwork.compile(net) if order == "inside" else net
    model: Any = DistributedDataParallel(net, **{"bucket_cap_mb": 0.001, **given})
    call = lampwork.compile(model) if order == "outside" else model
    loop(call, torch.optim.AdamW(model.parameters(), 0.01), batches(rank, dtype))
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]


def trains_as_eager(rank: int, name: str, order: str) -> None:
    before = lampwork.stats()["compiled_backwards"]
    ours = trained(rank, name, torch.float32, order)
    compiled = lampwork.stats()["compiled_backwards"] - before
    close(ours, trained(rank, name, torch.float64, "nothing"))
    assert compiled >= 2 or name == "sizes", lampwork.stats()
    if name == "plain":
        assert compiled >= 2 * (STEPS - 1), f"{compiled} backwards: regions were not cut"


def close(ours: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-3, atol=1e-4)


def fails_on_one_rank(rank: int, half: str) -> None:
    """Rank 1 cannot compile, forward or backward: it runs eager, the others do not notice, and none waits."""

    patched = "lampwork.api.build_entry" if half == "forward" else "lampwork.compiled.training.split"
    broken = mock.patch(patched, side_effect=UnsupportedOpError("injected"))
    with broken if rank == 1 else contextlib.nullcontext():
        before = lampwork.stats()
        ours = trained(rank, "plain", torch.float32, "inside")
        after = lampwork.stats()
    close(ours, trained(rank, "plain", torch.float64, "nothing"))
    compiled = after["compiled_backwards"] > before["compiled_backwards"]
    assert compiled == (rank != 1), (before, after)


def first_bucket_is_early(rank: int, order: str) -> None:
    """The first of the wrapper's buckets is reduced when at most half of backward's pieces have run."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())]
    net: nn.Module = nn.Sequential(*layers)
    net = lampwork.compile(net) if order == "inside" else net
    model: Any = DistributedDataParallel(net, bucket_cap_mb=0.25)
    ready: list[int] = []

    def reduce(state, bucket):  # torch refuses annotations that are texts
        ready.append(lampwork.stats()["compiled_backwards"])
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, reduce)
    call = lampwork.compile(model) if order == "outside" else model
    for _ in range(3):
        loss = call(torch.randn(256, 256)).square().mean()
        ready.clear()
        before = lampwork.stats()["compiled_backwards"]
        loss.backward()
    pieces = lampwork.stats()["compiled_backwards"] - before
    assert len(ready) == 6, f"{len(ready)} buckets"
    assert pieces >= 2 and ready[0] - before <= pieces / 2, (
        f"ready after {[n - before for n in ready]} of {pieces}"
    )


TASKS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    **{f"inside {name}": (trains_as_eager, (name, "inside")) for name in LOOPS},
    **{f"outside {name}": (trains_as_eager, (name, "outside")) for name in ("plain", "views", "unused")},
    "early inside": (first_bucket_is_early, ("inside",)),
    "early outside": (first_bucket_is_early, ("outside",)),
    "no forward on one rank": (fails_on_one_rank, ("forward",)),
    "no backward on one rank": (fails_on_one_rank, ("backward",)),
}
