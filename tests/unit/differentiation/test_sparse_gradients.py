"""Embeddings with sparse gradients, compiled: indices, values and their order are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lampwork


class Tower(torch.nn.Module):
    """Looks up `ways` times in one table, and, if `shares`, multiplies by it."""

    def __init__(
        self, ways: int = 1, padding: int | None = None, shares: bool = False, scale: bool = False
    ) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, 6, padding_idx=padding, sparse=True, scale_grad_by_freq=scale)
        self.head = torch.nn.Linear(6, 3)
        self.ways, self.shares = ways, shares

    def forward(self, ids: Tensor) -> Tensor:
        looked = sum(torch.tanh(self.table(ids + way)).mean(1) * (way + 1) for way in range(self.ways))
        assert isinstance(looked, Tensor)
        if self.shares:
            looked = looked + (looked @ self.table.weight.t()) @ self.table.weight
        return self.head(looked)


def grads_of(net: torch.nn.Module) -> list[Tensor | None]:
    return [param.grad for param in net.parameters()]


def assert_same(mine: list[Tensor | None], eager: list[Tensor | None]) -> None:
    for have, want in zip(mine, eager, strict=True):
        assert (have is None) == (want is None)
        if have is None or want is None:
            continue
        assert have.layout == want.layout and have.shape == want.shape
        if want.is_sparse:
            assert have.is_coalesced() == want.is_coalesced()
            assert torch.equal(have._indices(), want._indices())
            torch.testing.assert_close(have._values(), want._values())
        else:
            torch.testing.assert_close(have, want, equal_nan=True)


def check(net: Tower, batches: list[Tensor], loss: Callable[[Tensor], Tensor], *, zero: bool = True) -> None:
    twin = copy.deepcopy(net)
    compiled = lampwork.compile(net)
    for ids in batches:
        for model, called in ((net, compiled), (twin, twin)):
            if zero:
                model.zero_grad()
            loss(called(ids)).backward()
        assert_same(grads_of(net), grads_of(twin))


def batches(shape: tuple[int, ...] = (4, 5), count: int = 4, high: int = 18) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randint(0, high, shape, generator=made) for _ in range(count)]


@pytest.mark.parametrize("ways", [1, 2, 3])
@pytest.mark.parametrize("padding", [None, 0, 3])
@pytest.mark.parametrize("zero", [True, False])
def test_gradients_are_compiled(ways: int, padding: int | None, zero: bool) -> None:
    before = lampwork.stats()["compiled_backwards"]
    check(Tower(ways, padding), batches(), lambda y: y.square().sum(), zero=zero)
    assert lampwork.stats()["compiled_backwards"] - before == 3


def test_a_loss_in_the_region_is_compiled_from_the_first_step() -> None:
    net = Tower()
    step = lampwork.compile(lambda ids: net(ids).square().sum())
    before = lampwork.stats()["eager_backwards"]
    for ids in batches():
        net.zero_grad()
        step(ids).backward()
        mine = grads_of(net)
        net.zero_grad()
        net(ids).square().sum().backward()
        assert_same(mine, grads_of(net))
    assert lampwork.stats()["eager_backwards"] == before


@pytest.mark.parametrize("net", [Tower(shares=True), Tower(scale=True)], ids=["dense too", "scaled"])
def test_what_is_not_compiled_is_as_in_eager(net: Tower) -> None:
    if not net.table.scale_grad_by_freq:
        check(net, batches(), lambda y: y.sum())
        return
    compiled = lampwork.compile(net)
    for ids in batches():
        for called in (net, compiled):
            with pytest.raises(RuntimeError, match="scale_grad_by_freq"):
                called(ids).sum().backward()


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 0), (0, 4)])
def test_shapes(shape: tuple[int, ...]) -> None:
    check(Tower(padding=1), batches(shape), lambda y: y.nan_to_num().sum())


def test_indices_of_int32() -> None:
    check(Tower(), [ids.int() for ids in batches()], lambda y: y.sum())


def test_gradient_of_gradient() -> None:
    net = Tower()
    compiled = lampwork.compile(net)
    for ids in batches():
        seen: list[list[Tensor | None]] = []
        for called in (net, compiled):
            net.zero_grad()
            out = called(ids)
            (weight,) = torch.autograd.grad(out.square().sum(), [net.head.weight], create_graph=True)
            weight.square().sum().backward()
            seen.append(grads_of(net))
        assert_same(seen[1], seen[0])


def test_steps_of_sparse_adam() -> None:
    net = Tower(2, padding=0)
    twin = copy.deepcopy(net)
    compiled = lampwork.compile(net)
    seen: list[Any] = []
    for model, called in ((net, compiled), (twin, twin)):
        sparse = torch.optim.SparseAdam([model.table.weight], lr=0.01)
        dense = torch.optim.SGD(model.head.parameters(), lr=0.01)
        for ids in batches(count=6):
            model.zero_grad()
            called(ids).square().sum().backward()
            sparse.step()
            dense.step()
        seen.append([param.detach().clone() for param in model.parameters()])
    for have, want in zip(*seen, strict=True):
        torch.testing.assert_close(have, want, equal_nan=True)
