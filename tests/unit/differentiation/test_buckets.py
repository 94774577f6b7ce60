"""Regions are cut where gradients fill buckets, and nothing but the time at which gradients are ready is different."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import lampwork
from lampwork.differentiation.buckets import Buckets, active_buckets, bucket_cuts
from lampwork.differentiation.segments import cut
from lampwork.graph.record import Recorder

DDP: Any = nn.parallel.DistributedDataParallel


@pytest.fixture
def wrapper() -> Iterator[Callable[[int | None], None]]:
    """Sets the bytes of a bucket of the wrapper whose forward is running; None: there is no wrapper."""

    def activate(cap: int | None) -> None:
        DDP._active_ddp_module = None if cap is None else SimpleNamespace(bucket_bytes_cap=cap)

    yield activate
    DDP._active_ddp_module = None


def recorded(fn: Callable[..., Tensor], x: Tensor, weights: Sequence[Tensor]) -> fx.Graph:
    with Recorder() as rec:
        bound = [rec.input(w, f"w{i}", True) for i, w in enumerate(weights)]
        result = fn(rec.input(x, "x"), *bound)
    return rec.finish([result]).graph


def weights(*sizes: int) -> list[Tensor]:
    return [torch.randn(n, n).requires_grad_() for n in sizes]


def names(nodes: frozenset[fx.Node]) -> set[str]:
    return {node.name for node in nodes}


def chain(x: Tensor, *ws: Tensor) -> Tensor:
    for w in ws:
        x = (x @ w).relu()
    return x


def test_a_chain_is_cut_behind_each_full_bucket() -> None:
    graph = recorded(chain, torch.randn(2, 8), weights(8, 8, 8, 8))
    assert names(bucket_cuts(graph, Buckets(256, 512))) == {"relu", "relu_2"}
    assert names(bucket_cuts(graph, Buckets(256, 256))) == {"relu", "relu_1", "relu_2"}
    assert len(cut(graph, bucket_cuts(graph, Buckets(256, 512))).segments) == 3


def test_what_fills_no_two_buckets_is_not_cut() -> None:
    graph = recorded(chain, torch.randn(2, 8), weights(8, 8))
    assert not bucket_cuts(graph, Buckets(1024, 1024))
    assert not bucket_cuts(recorded(lambda x: x.relu(), torch.randn(2).requires_grad_(), []), Buckets(0, 0))


def test_the_cut_is_where_fewest_values_cross() -> None:
    def block(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return x + (x @ a).tanh() @ b

    def blocks(x: Tensor, *ws: Tensor) -> Tensor:
        return block(block(x @ ws[0], *ws[1:3]), *ws[3:5])

    graph = recorded(blocks, torch.randn(2, 8), weights(*[8] * 5))
    assert names(bucket_cuts(graph, Buckets(256, 256))) == {"matmul", "add"}


def test_a_tied_weight_counts_where_it_is_used_first() -> None:
    def tied(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (((x @ a).relu() @ b).relu() @ c).relu() @ a

    graph = recorded(tied, torch.randn(2, 8), weights(8, 8, 8))
    assert names(bucket_cuts(graph, Buckets(256, 256))) == {"relu", "relu_1"}


def test_an_operator_of_several_results_stays_with_them() -> None:
    def halves(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        low, high = torch.ops.aten.var_mean.correction(x @ a, [1], keepdim=True)
        return ((high @ b[:1]).relu() * low) @ c

    graph = recorded(halves, torch.randn(2, 8), weights(8, 8, 8))
    assert names(bucket_cuts(graph, Buckets(256, 256))) == {"mul", "matmul"}


class Residual(nn.Module):
    """Blocks with skip connections, of which two share weights, tied ends, and a branch that joins late."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(4)
        )
        self.gate = nn.Linear(width, width)
        self.ends = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        x = self.ends(x)
        for block in (*self.blocks, self.blocks[1]):
            x = x + block(x)
        return F.linear(x * gate, self.ends.weight)


class Dense(nn.Module):
    """Each layer takes all results before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8 * (i + 1), 8) for i in range(6))

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        for layer in self.layers:
            found.append(torch.tanh(layer(torch.cat(found, 1))))
        return found[-1] * found[-2]


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (5, 16)),
    "dense": (Dense, (3, 8)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        (2, 5, 16),
    ),
    "decoder": (lambda: nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True), (2, 5, 16)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)),
        (2, 3, 9, 9),
    ),
    "recurrent": (lambda: nn.LSTM(8, 8, 2, batch_first=True), (2, 4, 8)),
}


def gradients(net: nn.Module, call: Callable[..., Any], x: Tensor) -> list[Tensor]:
    result = call(x, x) if isinstance(net, nn.Transformer) else call(x)
    result = result[0] if isinstance(result, tuple) else result
    result.square().sum().backward()
    found = [p.grad for p in (x, *net.parameters()) if p.grad is not None]
    net.zero_grad()
    return found


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("cap", [1, 1 << 11])
def test_gradients_are_eagers(name: str, cap: int, wrapper: Callable[[int | None], None]) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    net = make()
    compiled = lampwork.compile(net)
    exact = make().double()
    exact.load_state_dict(net.state_dict())
    before = lampwork.stats()
    wrapper(cap)
    for seed in range(3):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        ours = gradients(net, compiled, x.clone().requires_grad_())
        wanted = gradients(exact, exact, x.double().requires_grad_())
        for a, b in zip(ours, wanted, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)
    assert lampwork.stats()["compiled_backwards"] - before["compiled_backwards"] >= 2


def test_gradients_are_ready_before_backward_ends(wrapper: Callable[[int | None], None]) -> None:
    net = Residual()
    compiled = lampwork.compile(net)
    order: list[str] = []
    for name, weight in net.named_parameters():
        weight.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    wrapper(1)
    for step in range(3):
        order.clear()
        compiled(torch.randn(5, 16)).sum().backward()
        started = lampwork.stats()["compiled_backwards"]
        if step:
            assert order.index("blocks.3.3.weight") < order.index("blocks.0.3.weight"), order
    seen: list[int] = []
    net.blocks[3][3].weight.register_post_accumulate_grad_hook(
        lambda _: seen.append(lampwork.stats()["compiled_backwards"])
    )
    compiled(torch.randn(5, 16)).sum().backward()
    total = lampwork.stats()["compiled_backwards"] - started
    assert seen[0] - started < total / 2, (seen[0] - started, total)


def test_calls_before_the_wrapper_and_after(wrapper: Callable[[int | None], None]) -> None:
    """Who trains first without a wrapper is trained anew in one; results without gradients stay what they were."""
    net = Residual()
    compiled = lampwork.compile(net)
    for cap in (None, None, None, 1, 1, 1, None, 1):
        wrapper(cap)
        x = torch.randn(5, 16)
        ours = gradients(net, compiled, x.clone().requires_grad_())
        for a, b in zip(ours, gradients(net, net, x.clone().requires_grad_()), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)


def test_backward_twice_and_gradients_of_gradients(wrapper: Callable[[int | None], None]) -> None:
    net = Residual().double()
    compiled = lampwork.compile(net)
    wrapper(1)
    for _ in range(3):
        x = torch.randn(5, 16, dtype=torch.float64, requires_grad=True)
        found: list[list[Tensor]] = []
        for call in (compiled, net):
            y = call(x).square().sum()
            once = torch.autograd.grad(y, [x, *net.parameters()], retain_graph=True)
            (g,) = torch.autograd.grad(y, x, create_graph=True)
            found.append([*once, *torch.autograd.grad(g.square().sum(), [x, *net.parameters()])])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)


def test_open_sizes(wrapper: Callable[[int | None], None]) -> None:
    net = Residual().double()
    compiled = lampwork.compile(net)
    wrapper(1)
    for size in (3, 4, 5, 4, 5, 1, 4):
        x = torch.randn(size, 16, dtype=torch.float64)
        ours = gradients(net, compiled, x.clone().requires_grad_())
        for a, b in zip(ours, gradients(net, net, x.clone().requires_grad_()), strict=True):
            torch.testing.assert_close(a, b)


def test_the_sizes_of_buckets(wrapper: Callable[[int | None], None]) -> None:
    assert active_buckets() is None
    wrapper(25 << 20)
    assert active_buckets() == Buckets(1 << 20, 25 << 20)
    wrapper(1000)
    assert active_buckets() == Buckets(1000, 1000)
