"""Numbers that differ from call to call and are no sizes: one plan serves all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork.api import function_of
from lampwork.runtime import stats


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return self.layer(x)


def counts(run: Callable[[], Any]) -> dict[str, int]:
    before = dict(stats())
    run()
    return {name: value - before[name] for name, value in stats().items()}


def test_a_step_counter_makes_no_plans():
    model, twin = Counter(), Counter()
    twin.load_state_dict(model.state_dict())
    compiled = lampwork.compile(model)
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(4):
            compiled(x), twin(x)

        def run() -> None:
            for _ in range(100):
                torch.testing.assert_close(compiled(x), twin(x))

        made = counts(run)
    assert (made["misses"], made["specializations"], made["failures"]) == (0, 0, 0)
    assert model.step == twin.step == 104
    assert len(compiled.entries) == 3  # 0, 1 and any other


SCALARS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "int": lambda x, n: x * n,
    "quotient": lambda x, n: x + 1 / n,
    "root": lambda x, n: x * math.sqrt(n) - n**0.5,
    "nested": lambda x, n: (x + n) / (1 + math.exp(-0.1 * n)),
    "in an ATen call": lambda x, n: torch.special.polygamma(1, x.abs() + 1) * n + x.cumsum(0).clamp(max=n),
    "a scalar of an ATen call": lambda x, n: x.scatter(1, torch.tensor([[0, 2]]), n * 0.25),
    "index_fill": lambda x, n: x.index_fill(1, torch.tensor([0, 2]), n),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "returned": lambda x, n: (x * n, n + 1, n * 0.5 if False else 0),
    "full": lambda x, n: x + torch.full((3,), n),
}


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize(
    "values", [(3, 4, 5, 6, 7, 3), (0.25, 0.5, 0.75, 2.5, 3.25, 0.25)], ids=["int", "float"]
)
def test_scalars_are_arguments_of_one_plan(name, values):
    fn = SCALARS[name]
    if name == "returned" and isinstance(values[0], float):
        pytest.skip("a float that leaves the region is a number of the version")
    compiled = lampwork.compile(fn)
    x = torch.randn(2, 3)
    with torch.no_grad():
        for value in values[:2]:
            torch.testing.assert_close(compiled(x, value), fn(x, value))

        def run() -> None:
            for value in values[2:]:
                torch.testing.assert_close(compiled(x, value), fn(x, value))

        made = counts(run)
    assert (made["misses"], made["specializations"], made["failures"]) == (0, 0, 0)
    assert len(compiled.entries) == 2


def test_sizes_and_scalars_together():
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.reshape(-1) * n / x.shape[0] + n

    compiled = lampwork.compile(fn)
    with torch.no_grad():
        for size in (2, 3, 4, 5, 4):
            for n in (2, 3, 4, 9):
                x = torch.randn(size, 3)
                torch.testing.assert_close(compiled(x, n), fn(x, n))
    last = compiled.entries[-1].served
    assert len(last.specializations) <= 4  # one for each size, none for n


def test_a_number_that_cannot_be_computed_raises_as_eager_does():
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * (1 / (n - 5)) + math.sqrt(n)

    compiled = lampwork.compile(fn)
    x = torch.ones(2)
    with torch.no_grad():
        for n in (2, 3, 4):
            torch.testing.assert_close(compiled(x, n), fn(x, n))
        with pytest.raises(ZeroDivisionError):
            compiled(x, 5)
        with pytest.raises(ValueError, match="math domain error"):
            compiled(x, -2)
        torch.testing.assert_close(compiled(x, 7), fn(x, 7))


def test_gradients_with_scalars():
    weight = torch.randn(3, requires_grad=True)
    twin = weight.detach().clone().requires_grad_()

    def fn(x: torch.Tensor, w: torch.Tensor, step: int, lr: float) -> torch.Tensor:
        return ((x * w) ** 2 * lr / math.sqrt(step)).sum() * step

    compiled = lampwork.compile(fn)
    x = torch.randn(3)
    for step, lr in ((2, 0.5), (3, 0.25), (4, 0.125), (5, 0.3)):
        got, want = compiled(x, weight, step, lr), fn(x, twin, step, lr)
        torch.testing.assert_close(got, want)
        got.backward()
        want.backward()
    torch.testing.assert_close(weight.grad, twin.grad)
    assert len(function_of(compiled).entries) == 2


def test_a_loop_with_a_counter_has_few_versions():
    def fn(x: torch.Tensor) -> torch.Tensor:
        n = 0
        while x.sum() < 100:
            x = x * 1.5
            n += 1
        return x * n

    compiled = lampwork.compile(fn)
    x = torch.ones(4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fn(x))
    made = counts(lambda: compiled(x))
    assert (made["misses"], made["specializations"]) == (0, 0)
    assert sum(len(each.entries) for each in function_of(compiled).tree()) <= 6


def test_a_rank_that_depends_on_an_open_size():
    """A constant times a number that stays open is no constant."""
    compiled = lampwork.compile(lambda x: x.quantile(0.3, 0), dynamic=True)
    for size in (4, 7, 9):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), x.quantile(0.3, 0))
    assert len(compiled.entries) == 1
