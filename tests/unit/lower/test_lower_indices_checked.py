"""An index from data that is out of range raises, whatever becomes of the load that it was for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lampwork

T = torch.tensor
BAD = T([0, 9])
ROWS = torch.ones(4, 3)
Case = tuple[Callable[..., Any], list[torch.Tensor]]

# What an expanded tensor holds does not depend on the index.
EXPANDED: dict[str, Case] = {
    "index": (lambda x, i: x[i], [torch.ones(1, 5).expand(2, 5), BAD]),
    "index of two": (lambda x, i: x[i, i], [torch.ones(9, 1).expand(9, 5), T([2, 7])]),
    "index_select": (lambda x, i: x.index_select(0, i), [torch.ones(1, 5).expand(2, 5), BAD]),
    "gather": (lambda x, i: x.gather(1, i), [torch.ones(3, 1).expand(3, 5), T([[0, 7]])]),
    "gather of a result": (lambda x, i: (x + 1).gather(1, i), [torch.ones(3, 1).expand(3, 5), T([[0, 7]])]),
    "embedding": (lambda x, i: F.embedding(i, x), [torch.ones(1, 4).expand(6, 4), BAD]),
    "take": (lambda x, i: x.take(i), [torch.ones(1).expand(4), BAD]),
    "expand inside": (lambda x, i: x[None].expand(4, 3)[i], [torch.ones(3), BAD]),
    "repeat": (lambda x, i: x.repeat(4, 1)[i], [torch.ones(3), BAD]),
    "a part": (lambda x, y, i: torch.cat([y, x * 2])[i], [torch.ones(1).expand(4), torch.ones(3), BAD]),
}
# What is computed where it is read need not depend on it either.
COMPUTED: dict[str, Case] = {
    "zeros": (lambda i: torch.zeros(4, 3)[i], [BAD]),
    "full": (lambda i: torch.full((4, 3), 2.0)[i] + 1, [BAD]),
    "one row": (lambda x, i: (x + 1)[i], [torch.ones(1, 3), BAD]),
    "a bias": (lambda x, i: (x + torch.zeros(4, 3))[i], [torch.ones(3), BAD]),
    "twice": (lambda x, i: torch.ones(5, 3)[x[i]], [torch.zeros(4, dtype=torch.int64), BAD]),
    "product": (lambda x, i: torch.zeros(4, 3)[i] @ x, [torch.ones(3, 2), BAD]),
    "sum": (lambda i: torch.zeros(4, 3)[i].sum(), [BAD]),
    "padding": (lambda x, i: F.pad(x, (1, 0))[i][:, 0], [ROWS, BAD]),
    "padding at once": (lambda x, i: F.pad(x, (1, 0))[i, 0], [ROWS, BAD]),
    "parts": (lambda x, i: torch.cat([x, x * 2], 1)[i], [ROWS, BAD]),
    "a triangle": (lambda i: torch.tril(torch.ones(4, 4))[i], [BAD]),
    "times zero": (lambda x, i: x[i] * 0, [ROWS, BAD]),
    "not chosen": (lambda x, i, m: torch.where(m, x[i], 0.0), [torch.ones(4), BAD, T([False, False])]),
    "beside": (lambda x, i: torch.cat([x, x[i]])[:4], [ROWS, BAD]),
}
LABELS = T([0, 0, 0, 7])
# There is one place along the dimension, or what is there lies in a row's scratch memory.
OF_ONE: dict[str, Case] = {
    "gathered sum": (lambda x, i: (x + 1).gather(1, i).sum(), [torch.ones(4, 1), LABELS[:, None]]),
    "cross entropy": (lambda x, i: F.cross_entropy(x, i), [torch.ones(4, 1), LABELS]),
    "nll": (lambda x, i: F.nll_loss(x + 1, i), [torch.ones(4, 1), LABELS]),
    "nll, sum": (lambda x, i: F.nll_loss(x.softmax(1), i, reduction="sum"), [torch.ones(4, 1), LABELS]),
    "nll of expanded": (lambda x, i: F.nll_loss(x.expand(4, 3), i), [torch.ones(4, 1), LABELS]),
    "nll of sums": (
        lambda x, i: F.nll_loss(x.sum(1, keepdim=True).expand(-1, 3) * 1, i),
        [torch.ones(4, 2), LABELS],
    ),
}
CASES = EXPANDED | COMPUTED | OF_ONE


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_bad_indices_raise(name: str, dynamic: bool) -> None:
    fn, args = CASES[name]
    good = [torch.zeros_like(a) if a.dtype is torch.int64 else a for a in args]
    with pytest.raises((IndexError, RuntimeError)) as wanted:
        fn(*args)
    compiled = lampwork.compile(fn, dynamic=dynamic)
    for _ in range(2):
        torch.testing.assert_close(compiled(*good), fn(*good))
        with pytest.raises(type(wanted.value)) as raised:
            compiled(*args)
        assert str(raised.value) == str(wanted.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_indices_of_a_part_whose_elements_are_one(dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.cat([y, x[:, -1] * 2, y])[i]

    compiled = lampwork.compile(fn, dynamic=dynamic)
    for size in (4, 5, 1):
        x, y, i = torch.randn(1, 3).expand(size, 3), torch.randn(3), torch.arange(-size - 6, size + 6)
        assert torch.equal(compiled(x, y, i), fn(x, y, i))
