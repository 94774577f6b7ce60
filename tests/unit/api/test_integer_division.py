"""Integers divided by integers from data: 0 is an error, of eager's words, wherever it stands; padding is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lampwork

READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda quotient: quotient,
    "rows": lambda quotient: quotient[:3],
    "padded": lambda quotient: F.pad(quotient, (1, 2)),
    "rolled": lambda quotient: quotient.roll(2, 1),
    "joined": lambda quotient: torch.cat([quotient, quotient[:2] + 1]),
    "triangle": torch.tril,
    "sums": lambda quotient: quotient.sum(1),
}
DIVISIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "floor": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "truncated": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "fmod": torch.fmod,
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("division", DIVISIONS)
def test_zero_raises_and_nothing_else_leaves_compiled_code(division: str, read: str) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return READERS[read](DIVISIONS[division](x, y))

    compiled = lampwork.compile(fn)
    x, y = (
        torch.randint(-100, 100, (7, 33)),
        torch.randint(1, 9, (7, 33)) * torch.tensor([1, -1, 1]).repeat(11),
    )
    before = lampwork.stats()["eager_calls"]
    assert torch.equal(compiled(x, y), fn(x, y))
    assert lampwork.stats()["eager_calls"] == before
    broken = y.clone()
    broken[5, 0] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(x, broken)
    assert torch.equal(compiled(x, y), fn(x, y))


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), ()])
@pytest.mark.parametrize("division", DIVISIONS)
def test_sizes_0_and_1(division: str, shape: tuple[int, ...]) -> None:
    fn = DIVISIONS[division]
    x, y = torch.full(shape, -7), torch.full(shape, 2)
    assert torch.equal(lampwork.compile(fn)(x, y), fn(x, y))


def test_a_number_divided_by_integers() -> None:
    def fn(y: Tensor) -> Tensor:
        return 7 % y

    compiled = lampwork.compile(fn, options={"strict": True})
    y = torch.randint(1, 50, (33,))
    assert torch.equal(compiled(y), fn(y))
    y[3] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(y)
