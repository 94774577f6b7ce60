"""Programs as people write them: what the caller sees (results, aliases, gradients, effects) is what eager shows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lampwork


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


def shared(values: list[Tensor]) -> list[tuple[int, int, bool]]:
    """Pairs that share memory, and whether they are one object."""
    return [
        (i, j, values[i] is values[j])
        for i in range(len(values))
        for j in range(i)
        if values[i].untyped_storage().data_ptr() == values[j].untyped_storage().data_ptr()
    ]


def agree(make: Any, *calls: tuple[Any, ...], state: Any = None, breaks: bool = False) -> None:
    """`make()` gives a fresh function or module; compiled and eager do the same on every call.

    `state(fn)`: tensors of the outside world to compare too. `breaks`: graph breaks are to be expected.
    """
    torch.manual_seed(1)
    eager = make()
    torch.manual_seed(1)
    original = make()
    compiled = lampwork.compile(original)
    lampwork.reset_stats()
    for args in calls:
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        torch.manual_seed(2)
        got = compiled(*ours)
        torch.manual_seed(2)
        want = eager(*theirs)
        seen = [*tensors(got), *tensors(ours), *(tensors(state(original)) if state else [])]
        due = [*tensors(want), *tensors(theirs), *(tensors(state(eager)) if state else [])]
        assert len(seen) == len(due)
        for mine, right in zip(seen, due, strict=True):
            assert (mine.dtype, mine.shape, mine.stride()) == (right.dtype, right.shape, right.stride())
            assert mine.requires_grad == right.requires_grad
            torch.testing.assert_close(mine.detach(), right.detach(), equal_nan=True)
        assert shared(seen) == shared(due)
    stats = lampwork.stats()
    assert stats["eager_calls"] == 0, stats
    assert stats["breaks"] == 0 or breaks, stats


X = (torch.linspace(-1, 1, 8),)


def test_views_of_an_input_are_tensors_of_their_own():
    agree(lambda: lambda x: (x.detach(), x.view(2, 4).view(8), x.view(-1), x), X)


def test_detached_results_do_not_require_grad():
    def f(x):
        y = x * 2
        return y.detach(), y, x.detach(), x.detach()[1:], y.detach().view(4, 2), x.view(4, 2), y[1:]

    agree(lambda: f, (X[0].clone().requires_grad_(),))
    agree(lambda: torch.no_grad()(lambda x: x.detach()), (X[0].clone().requires_grad_(),))


def test_a_module_with_a_call_of_its_own():
    class Doubled(nn.Module):
        def forward(self, x):
            return x + 1

        def __call__(self, x):
            return super().__call__(x) * 2

    agree(Doubled, X)


class WrittenWithoutGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))

    def forward(self, x):
        with torch.no_grad():
            self.w.mul_(0.9)
        return x * self.w


def test_parameters_written_under_no_grad_go_on_to_require_grad():
    agree(WrittenWithoutGrad, X, X, state=lambda m: list(m.parameters()), breaks=True)
    for model in (WrittenWithoutGrad(), lampwork.compile(WrittenWithoutGrad())):
        model(*X).sum().backward()
        torch.testing.assert_close(model.w.grad, X[0])


def test_embedding_that_renormalizes_its_weight():
    ids = (torch.tensor([0, 3, 3, 5]),)
    agree(
        lambda: nn.Embedding(9, 3, max_norm=0.5),
        ids,
        ids,
        state=lambda m: list(m.parameters()),
        breaks=True,
    )


def test_gradients_turned_on_inside():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(8))

        def forward(self, x):
            with torch.no_grad():
                a = x * self.w
                with torch.enable_grad():
                    b = a * self.w
            return a, b, b * x

    agree(Mixed, X)
    with torch.no_grad():
        agree(Mixed, X, breaks=True)


class Swapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x):
        self.layers[0], self.layers[2] = self.layers[2], self.layers[0]
        return self.layers(x), self.layers[0].bias, [name for name, _ in self.layers.named_children()]


def test_layers_that_change_places():
    agree(Swapping, X, X, X, state=lambda m: list(m.parameters()))


def test_buffers_replaced_and_then_listed():
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(8))

        def forward(self, x):
            self.total = self.total + x
            return self._buffers["total"] * 2, self.total

    agree(Summed, X, X, state=lambda m: list(m.buffers()), breaks=True)


def test_attributes_that_come_and_go():
    class Scratch(nn.Module):
        def forward(self, x):
            self.scratch = x * 2
            y = self.scratch + 1
            del self.scratch
            return y, [torch.tensor(hasattr(self, "scratch"))]

    agree(Scratch, X, X)


def test_a_display_with_a_break_in_the_middle():
    def total(*parts, **named):
        return sum(parts) + sum(named.values())

    def f(x, xs, d):
        return (
            total(*xs, x, x.sum().item()),
            [*xs, x.max().item(), *xs],
            {**d, "n": x.argmax().item(), "x": x},
            total(x, *xs, **d, u=x.sum().item()),
        )

    agree(lambda: f, (*X, [X[0] + 1, X[0] + 2], {"q": 2}), (*X, [X[0]], {"q": 3, "r": 4}), breaks=True)


@pytest.mark.parametrize("n", [2, 3, 6, -3])
def test_branch_on_a_number(n):
    def fn(x, n):
        y = x**2
        if n >= 0:
            return (n + 1) * y
        else:
            return y / n

    agree(lambda: fn, (*X, n), (*X, 2))


def test_branch_on_data():
    def f1(x, y):
        x = torch.sin(x)
        x = torch.matmul(x, y)
        if x.sum() < 0:
            return -y
        return y

    x, y = torch.rand(4, 4), torch.rand(4, 4)
    agree(lambda: f1, (x, y), (-x, y), (x, y), breaks=True)


def test_many_operators_at_once():
    def f(x):
        table = torch.zeros(8, dtype=torch.long)
        return (
            x.max(0),
            x.sort(descending=True),
            torch.linalg.qr(x.view(2, 4)),
            F.embedding(table, x.view(4, 2)),
            torch.var_mean(x),
            1 - torch.linspace(0, 1, 8).abs(),
        )

    agree(lambda: f, X)


def test_random_numbers_are_drawn_in_order_and_all_of_them():
    def f(x):
        torch.rand(3)
        table = torch.ones(4)
        first = F.dropout(table)
        y = F.dropout((x * 2).softmax(0).view(2, 4) @ torch.ones(4, 4))
        second = F.dropout(table)
        z = F.dropout(y.exp())
        return first, second, z, torch.rand_like(x)

    agree(lambda: f, X, X)
