"""Tensors that depend on literals only are known while recording; all others still need data."""

from __future__ import annotations

import pytest
import torch

import lampwork
from lampwork.errors import DataDependentError
from lampwork.graph.record import Recorder


def spans(x):
    return torch.tensor(min(x.shape[0], 5))


KNOWN = {
    "index": lambda x: x[: spans(x)],
    "sliced_by_arithmetic": lambda x: x[spans(x) - 2 : spans(x) + 1],
    "int": lambda x: x * int(torch.tensor(7) // 2),
    "float": lambda x: x * float(torch.tensor(3.0).sqrt()),
    "item": lambda x: x + torch.full((), 4).item(),
    "branch": lambda x: x + 1 if torch.tensor(2) < 3 else x - 1,
    "truth": lambda x: x + 1 if torch.zeros(1).any() else x - 1,
    "size_of_a_view": lambda x: x.view(2, torch.div(8, 4, rounding_mode="trunc"), -1),
    "reshaped": lambda x: x.reshape(torch.tensor(4), 2),
    "numbers_only": lambda x: x + torch.div(7, 2, rounding_mode="floor"),
    "tolist": lambda x: x + sum(torch.ones(3).cumsum(0).tolist()),
    "range": lambda x: sum(x * i for i in range(torch.tensor(3))),
    "written": lambda x: x * int(torch.tensor(2).add_(3)),
    "cast": lambda x: x * torch.tensor(2.7).to(torch.int64).item(),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_values_need_no_data(name):
    fn = KNOWN[name]
    x = torch.randn(8)
    compiled = lampwork.compile(fn, fullgraph=True)
    for tensor in (x, torch.randn(8)):
        torch.testing.assert_close(compiled(tensor), fn(tensor))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: int(x.sum()),
        lambda x: int(torch.zeros(()).normal_()),
        lambda x: float(torch.rand(())),
        lambda x: int(torch.zeros((), dtype=torch.int64) + x.long().sum()),
        lambda x: float(torch.zeros(()).copy_(x[0])),
        lambda x: torch.zeros(17).tolist(),
        lambda x: float(torch.empty(())),
        lambda x: float(torch.zeros(2).index_fill_(0, x[:1].long(), 1.0)[0]),
    ],
    ids=["input", "drawn", "random", "mixed", "copied", "large", "empty", "written"],
)
def test_others_need_data(fn):
    ones = torch.ones(4)
    with Recorder() as recorder:
        x = recorder.input(ones, "x")
        with pytest.raises(DataDependentError):
            fn(x)


def test_an_alias_of_what_was_written_is_not_known():
    one = torch.ones(())
    with Recorder() as recorder:
        x = recorder.input(one, "x")
        known = torch.zeros(2)
        first = known[0]
        assert float(first) == 0.0
        known.copy_(x)
        with pytest.raises(DataDependentError):
            float(first)
