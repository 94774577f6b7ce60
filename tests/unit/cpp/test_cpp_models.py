"""Exported models give the same in C++ as in Python, bit for bit, in every target that this machine runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cpp_runtime import BUILDS, CppError, Runtime
from torch import nn
from torch.export import Dim

import lampwork
from lampwork.errors import OptionError

pytestmark = BUILDS


class Net(nn.Module):
    """Rows that are looked up, a mixture of heads, and a dict of results."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.last = nn.Linear(32, 16)
        self.last.weight = nn.Parameter(self.last.weight.detach().clone())

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.words(ids)
        y = self.last(torch.nn.functional.gelu(self.norm(self.first(x))))
        scores = torch.softmax(y @ y.transpose(1, 2), -1)
        return {"y": y, "scores": scores, "first": y[:, 0]}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).amax((2, 3)))


def _same(runtime: Runtime, path: Path, cases: list[list[torch.Tensor]], **options: Any) -> None:
    here = lampwork.load(path, trust=True)
    for threads in (1, 2):
        there = runtime.load(path, threads=threads, **options)
        for inputs in cases:
            expected = here(*inputs)
            leaves = list(expected.values()) if isinstance(expected, dict) else [expected]
            found = there.run(*inputs)
            assert len(found) == len(leaves)
            for one, other in zip(found, leaves, strict=True):
                assert one.dtype == other.dtype and one.stride() == other.stride()
                assert torch.equal(one, other)


def test_open_sizes_and_sizes_of_one(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "net.lamp"
    shapes = ({0: Dim("b", max=32), 1: Dim("n", max=64)},)
    ids = torch.randint(20, (3, 5))
    lampwork.export(Net().eval(), (ids,), dynamic_shapes=shapes, path=path, targets=["host"])
    cases = [[torch.randint(20, size)] for size in ((3, 5), (1, 5), (4, 1), (1, 1), (32, 64), (2, 7))]
    _same(runtime, path, cases)
    model = runtime.load(path)
    assert [name for name, _, _ in model.specs("forward", "output")] == ["y", "scores", "first"]
    with pytest.raises(CppError, match="LW_INPUT: dimension 0 of the input 'ids' .* is 33; between 1 and 32"):
        model.run(torch.zeros(33, 2, dtype=torch.int64))
    with pytest.raises(CppError, match="LW_INPUT: dimension 1 of the input 'ids' .* is 65; between 1 and 64"):
        model.run(torch.zeros(1, 65, dtype=torch.int64))
    with pytest.raises(CppError, match="LW_KERNEL: .*an index in the inputs is out of range"):
        model.run(torch.tensor([[3, 20]]))


def test_convolutions_and_weights_of_another_file(runtime: Runtime, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path, x = tmp_path / "small.lamp", torch.randn(2, 3, 12, 12)
    model = Small().eval()
    lampwork.export(model, (x,), path=path, targets=["host"], require="standalone")
    _same(runtime, path, [[x], [torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)]])
    other = Small().eval()
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    there = runtime.load(path)
    there.run(x)
    there.set_weights(tmp_path / "other.safetensors")
    expected = lampwork.load(path, trust=True, weights=tmp_path / "other.safetensors")(x)
    assert torch.equal(there.run(x)[0], expected)


class Sized(nn.Module):
    """Sizes among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"n": x.shape[0], "y": x + 1, "both": (3, x.shape[0] * 2), "kept": self.kept[1:]}


def test_sizes_among_results_and_inputs_of_other_strides(runtime: Runtime, tmp_path: Path) -> None:
    """The example is a transposed one, so a stride is open too; inputs that lie otherwise are copied."""
    path, example = tmp_path / "sized.lamp", torch.randn(3, 4).t()
    shapes = ({0: Dim("n", max=64)},)
    lampwork.export(
        Sized(), (example,), dynamic_shapes=shapes, path=path, targets=["host"], require="standalone"
    )
    model = runtime.load(path)
    for x in (torch.randn(5, 3), torch.randn(3, 7).t(), torch.randn(1, 3), torch.randn(64, 6)[:, ::2]):
        n, y, doubled, kept = model.run(x)
        assert n.item() == x.shape[0] and doubled.item() == 2 * x.shape[0]
        assert torch.equal(y, x + 1) and kept.tolist() == [1, 2, 3]
    assert [name for name, _, _ in model.specs("forward", "output")] == ["n", "y", "both.1", "kept"]
    with pytest.raises(CppError, match="LW_INPUT: .* has 4 in dimension 1; 3 was expected"):
        model.run(torch.randn(1, 4))


def test_sizes_that_are_computed_of_one_another(runtime: Runtime, tmp_path: Path) -> None:
    """And the ones that programs of their own serve: 1, and 2, which makes another size 1."""

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(1)[:-1] + y

    path, half = tmp_path / "half.lamp", Dim("half", max=32)
    shapes = ({0: 2 * half}, {0: half - 1})
    with pytest.raises(OptionError, match="Please specify an appropriate min value for half"):
        lampwork.export(model, (torch.randn(8), torch.randn(3)), dynamic_shapes=shapes, path=path)
    half = Dim("half", min=2, max=32)
    shapes = ({0: 2 * half}, {0: half - 1})
    example = (torch.randn(8), torch.randn(3))
    lampwork.export(model, example, dynamic_shapes=shapes, path=path, targets=["host"], require="standalone")
    _same(runtime, path, [[torch.randn(2 * n), torch.randn(n - 1)] for n in (4, 2, 3, 32)])
    there = runtime.load(path)
    for x, y, message in (
        (9, 3, r"s0%2 == 0|in dimension 0"),
        (8, 4, "in dimension 0; 3 was expected"),
        (66, 32, "between 4 and 64 was expected"),
    ):
        with pytest.raises(CppError, match=f"LW_INPUT: .*({message})"):
            there.run(torch.randn(x), torch.randn(y))
