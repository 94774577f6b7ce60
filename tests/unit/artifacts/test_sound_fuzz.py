"""Graphs and manifests of a file that is not trusted, with one thing changed at random: the file is refused, or it
computes within its memory. What reads beyond it ends the process.

`LAMPWORK_FUZZ=4000` tries so many changes, `LAMPWORK_FUZZ_SEED=n` begins with another seed. It prints what it changed.
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sound import Sums, changed
from torch import nn

import lampwork
from lampwork.errors import LampworkError

SAMPLES = int(os.environ.get("LAMPWORK_FUZZ", "60"))
SEED = int(os.environ.get("LAMPWORK_FUZZ_SEED", "0"))
NUMBERS = (-1, 0, 1, 2, 3, 5, 7, 8, 63, 64, 4096, 1 << 20, 1 << 40, (1 << 63) - 1)
DTYPES = ("float32", "float64", "int64", "bool", "bfloat16", "complex64", "uint8")


class Net(nn.Module):
    """Kinds of operators: convolutions, pooling, products, look-ups, views, sorting."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.table = nn.Embedding(6, 8)
        self.linear = nn.Linear(16, 8)

    def forward(self, image: torch.Tensor, words: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = torch.max_pool2d(self.conv(image).relu(), 2).flatten(1)
        seen = self.linear(features).unsqueeze(1)
        found = torch.softmax(seen @ self.table(words).transpose(1, 2), -1)
        return found.squeeze(1), words.sort(-1)[0][:, 1:], features.as_strided((2, 3), (4, 1))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container of a JSON value with a key of its that holds no container."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(items):
        if isinstance(each, (dict, list)):
            yield from places(each)
        yield value, key


def mutate(random_: random.Random, graph: dict[str, Any], manifest: dict[str, Any]) -> str:
    nodes = graph["nodes"]
    kind = random_.choice(("number", "number", "number", "dtype", "target", "drop", "argument", "copy"))
    where = random_.choice((graph, graph, manifest["entries"], manifest["weights"]))
    spots = list(places(where))
    if kind == "number":
        spots = [(holder, key) for holder, key in spots if type(holder[key]) is int]
        if not spots:
            return "nothing"
        holder, key = random_.choice(spots)
        was, holder[key] = holder[key], random_.choice((*NUMBERS, holder[key] + 1, holder[key] - 1))
        return f"{key}: {was} -> {holder[key]}"
    if kind == "dtype":
        spots = [(holder, key) for holder, key in spots if key == "dtype"]
        holder, key = random_.choice(spots)
        holder[key] = random_.choice(DTYPES)
        return f"dtype {holder[key]}"
    calls = [node for node in nodes if node["op"] == "call"]
    one, other = random_.choice(calls), random_.choice(calls)
    if kind == "target":
        one["target"] = other["target"]
        return f"{one['name']} = {other['target']}"
    if kind == "argument":
        one["args"] = copy.deepcopy(other["args"])
        return f"{one['name']} has the arguments of {other['name']}"
    if kind == "copy":
        one["val"] = copy.deepcopy(other["val"])
        return f"{one['name']} states what {other['name']} does"
    holder, key = random_.choice(spots)
    del holder[key]
    return f"without {key}"


@pytest.fixture(scope="module", params=["closed", "open"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("fuzz") / "net.lamp"
    if request.param == "closed":
        inputs: Any = torch.randn(2, 2, 4, 4), torch.tensor([[0, 5, 2], [3, 3, 1]])
        lampwork.export(Net(), inputs, path=path, targets=["host"])
    else:
        rows = torch.export.Dim("rows", min=2, max=64)
        inputs = torch.randn(3, 4), torch.randn(3, 4)
        lampwork.export(Sums(), inputs, dynamic_shapes=({0: rows}, {0: rows}), path=path, targets=["host"])
    return path, inputs


def test_random_changes(made: tuple[Path, Any], tmp_path: Path) -> None:
    path, inputs = made
    ran = refused = 0
    for seed in range(SEED, SEED + SAMPLES // 2):
        random_ = random.Random(seed)
        said: list[str] = []
        file = changed(path, tmp_path, lambda graph, manifest: said.append(mutate(random_, graph, manifest)))
        print(f"LAMPWORK_FUZZ_SEED={seed}: {said[0]}", flush=True)
        try:
            loaded = lampwork.load(file)
            for _ in range(2):
                loaded(*inputs)
            ran += 1
        except LampworkError:
            refused += 1
    assert refused > ran, "most changes are lies"
