"""What a model writes to inputs and buffers, by programs that C++ runs without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_runtime import BUILDS, Runtime
from torch import nn
from torch.export import Dim

import lampwork
from lampwork.errors import ExportError

pytestmark = BUILDS


class Writing(nn.Module):
    def __init__(self, write: Callable[..., Any]) -> None:
        super().__init__()
        self.write = write
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("kept", torch.zeros(4, 4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.write(self, x, y)
        return x * 2 + y + self.kept


def swap(m: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


def store(m: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    m.kept.copy_(x)
    m.calls.add_(1)


def push(m: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    m.kept.copy_(torch.cat([m.kept[1:], x[:1]]))


def put_row(m: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    x[1:3, 1] = y[0, 1:3]


WRITES: dict[str, Callable[..., Any]] = {
    "of what is computed": lambda m, x, y: x.add_(1),
    "of an input": lambda m, x, y: x.copy_(y),
    "of an input in other strides": lambda m, x, y: x.copy_(y.t()),
    "of itself in other strides": lambda m, x, y: x.copy_(x.t().clone()),
    "of a weight": lambda m, x, y: x.copy_(m.weight.t()),
    "of a number": lambda m, x, y: x.fill_(3),
    "of another dtype": lambda m, x, y: x.copy_(y.half()),
    "of a part": put_row,
    "to several inputs": swap,
    "to buffers": store,
    "to a buffer of itself": push,
}


@pytest.mark.parametrize("of", WRITES)
def test_what_is_written_back_needs_no_torch(runtime: Runtime, tmp_path: Path, of: str) -> None:
    path, model = tmp_path / "m.lamp", Writing(WRITES[of]).eval()
    example = (torch.randn(4, 4), torch.randn(4, 4))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    lampwork.export(model, example, path=path, targets="host", require="standalone")
    model.load_state_dict(before)
    there = runtime.load(path)
    assert there.needs_aten() == []
    assert "none: standalone" in str(lampwork.artifacts.inspect(path))
    for layout in (
        torch.clone,
        lambda each: each.t().contiguous().t(),
        lambda each: each.repeat(1, 2)[:, :4],
    ):
        ours, theirs = (
            [layout(torch.randn(4, 4, generator=torch.manual_seed(n))) for n in (1, 2)] for _ in "ab"
        )
        with torch.no_grad():
            expected = model(*ours)
        (found,) = there.run(*theirs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(theirs, ours)


def test_a_cache_of_open_size_is_written_without_torch(runtime: Runtime, tmp_path: Path) -> None:
    class Decode(nn.Module):
        def forward(self, cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            cache.index_copy_(1, at, new[:, None])
            return cache.sum(1)

    path = tmp_path / "decode.lamp"
    example = (torch.randn(2, 6, 3), torch.tensor([2]), torch.randn(2, 3))
    shapes = {"cache": {0: (batch := Dim("batch", max=8)), 1: Dim("room", min=2, max=64)}, "new": {0: batch}}
    lampwork.export(Decode(), example, dynamic_shapes=shapes, path=path, targets="host", require="standalone")
    there = runtime.load(path)
    for batch_size, room in ((2, 6), (1, 9), (8, 64), (3, 2)):
        cache, new = torch.randn(batch_size, room, 3), torch.randn(batch_size, 3)
        expected = cache.clone()
        expected[:, room - 1] = new
        (found,) = there.run(cache, torch.tensor([room - 1]), new)
        assert torch.equal(cache, expected)
        torch.testing.assert_close(found, expected.sum(1))


def test_what_torch_alone_computes_is_refused_for_what_it_is(tmp_path: Path) -> None:
    """The write itself is not among what is left."""
    with pytest.raises(ExportError, match="calls ATen operators\n    aten::linalg_inv") as raised:
        lampwork.export(
            Writing(lambda m, x, y: x.copy_(torch.linalg.inv(y))),
            (torch.eye(4), torch.eye(4)),
            path=tmp_path / "m.lamp",
            targets="host",
            require="standalone",
        )
    assert "copy_" not in str(raised.value)
