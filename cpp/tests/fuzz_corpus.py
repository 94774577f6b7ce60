"""The files that the fuzzers of the C++ runtime begin with: small models, each of a kind.

    python cpp/tests/fuzz_corpus.py FOLDER

The graphs in the files are left out: C++ does not read them. Each entry of `tests/unit/cpp/lamp_files.py`, which has
kinds that are not here, is a file too.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import lampwork

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "unit" / "cpp"))
from lamp_files import entries, object_code, write_lamp

TARGET = "x86-64-v2"


class Rows(nn.Module):
    """Open sizes, a look-up, products, and sizes among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> dict[str, Any]:
        y = torch.softmax(self.linear(self.words(ids)), -1)
        return {"y": y, "first": y[:, 0], "n": ids.shape[0] * 2}


class Counts(nn.Module):
    """Two entries that write to what they share."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.count

    def read(self) -> Tensor:
        return self.count * 2


class Written(nn.Module):
    """An input that is written to, and views of it."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x[:, 1:].add_(y)
        return x, x[:, ::2], y.t()


class Images(nn.Module):
    """A program of constants: a norm that is folded into a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, image: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(image))).amax((2, 3))


class Numbers(nn.Module):
    """Numbers in a call, and dtypes."""

    def forward(self, x: Tensor, by: int, flags: Tensor) -> tuple[Tensor, ...]:
        return torch.where(flags, x * by, x).to(torch.bfloat16), x.to(torch.int64) % 3, x.double().sum(0)


def export_all(folder: Path) -> None:
    torch.manual_seed(0)
    batch = Dim("batch", max=8)
    calls: list[tuple[str, nn.Module, dict[str, Any]]] = [
        ("rows", Rows(), {"args": (torch.ones(3, 2, dtype=torch.int64),), "dynamic_shapes": ({0: batch},)}),
        (
            "counts",
            counts := Counts(),
            {"entries": {"forward": ((torch.ones(2),),), "read": (counts.read, ())}},
        ),
        ("written", Written(), {"args": (torch.ones(2, 5), torch.ones(2, 4))}),
        ("images", Images(), {"args": (torch.ones(1, 1, 4, 4),)}),
        ("numbers", Numbers(), {"args": (torch.ones(3, 2), 3, torch.ones(3, 2, dtype=torch.bool))}),
        ("turned", nn.Linear(3, 2), {"args": (torch.ones(3, 4).t(),), "dynamic_shapes": ({0: batch},)}),
        ("dropped", nn.Sequential(nn.Linear(2, 2), nn.Dropout()), {"args": (torch.ones(2, 2),)}),
    ]
    for name, model, call in calls:
        if name != "dropped":
            model.eval()
        lampwork.export(model, path=folder / f"{name}.lamp", targets=[TARGET], **call)
        leave_out_graphs(folder / f"{name}.lamp")
    code = object_code()
    for name in entries():

        def keep_one(manifest: dict[str, Any], programs: dict[str, Any], name: str = name) -> None:
            for part in (manifest, programs):
                part["entries"] = {name: part["entries"][name]}

        write_lamp(folder / f"hand-{name}.lamp", code, change=keep_one)


def leave_out_graphs(path: Path) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    manifest = json.loads(header["__metadata__"]["manifest"])
    kept = b""
    for name in [name for name in header if name != "__metadata__"]:
        if name.startswith("lampwork.graph"):
            del header[name], manifest["sections"][name]
            continue
        begin, end = header[name]["data_offsets"]
        header[name]["data_offsets"] = [len(kept), len(kept) + end - begin]
        kept += data[begin:end]
    header["__metadata__"]["manifest"] = json.dumps(manifest, separators=(",", ":"))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + kept)


if __name__ == "__main__":
    made = Path(sys.argv[1])
    made.mkdir(parents=True, exist_ok=True)
    export_all(made)
