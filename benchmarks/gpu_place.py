"""Which device wins: `lampwork.place` on the CPU and a card, for models and batches from tiny to large.

    python benchmarks/gpu_place.py [NAME ...] [--device cuda] [--seconds 60] [--json FILE] [--plans]

Models and inputs lie on the CPU unless `--home cuda`. A row is a call on the CPU alone, on the card alone, by the mix
that is predicted to be best, what is kept, and the parts that leave the winner. `--plans` prints each whole plan, with
the reason for every part. After `--seconds` no further row is begun.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_workloads import networks
from torch import Tensor, nn

import lampwork
from lampwork.display.units import time_text
from lampwork.placement.plan import PlacementPlan

Make = Callable[[], tuple[nn.Module, Any]]


class Step(nn.Module):
    """A step of a two-layer LSTM: a token, and its state."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(5000, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(2))
        self.head = nn.Linear(width, 5000)

    def forward(self, token: Tensor, h: Tensor, c: Tensor) -> Tensor:
        x = self.embed(token)
        for number, cell in enumerate(self.cells):
            x, _ = cell(x, (h[number], c[number]))
        return self.head(x)


class Recommender(nn.Module):
    """Large tables of embeddings, of which a call reads little, and an MLP over what it reads."""

    def __init__(self, tables: int, rows: int, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        sizes = (tables * width, 1024, 512, 256, 1)
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sizes)]
        self.mlp = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        read = [table(features[:, number]) for number, table in enumerate(self.tables)]
        return self.mlp(torch.cat(read, 1)).sigmoid()


def cases(tiny: bool) -> dict[str, Make]:
    """Small ones first."""

    def mlp() -> tuple[nn.Module, Any]:
        return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10)).eval(), torch.randn(1, 64)

    def step(batch: int) -> Make:
        return lambda: (
            Step(32 if tiny else 512).eval(),
            (torch.randint(5000, (batch,)), *(torch.randn(2, batch, 32 if tiny else 512) for _ in range(2))),
        )

    def recommender(batch: int) -> Make:
        tables, rows = (3, 100) if tiny else (26, 100_000)
        return lambda: (Recommender(tables, rows).eval(), torch.randint(rows, (batch, tables)))

    def network(name: str, batch: int) -> Make:
        def make() -> tuple[nn.Module, Any]:
            model, (x,) = networks(tiny)[name]()
            return model, x[:1].repeat(batch, *(1 for _ in x.shape[1:]))

        return make

    return {
        "mlp, batch 1": mlp,
        "lstm step, batch 1": step(1),
        "lstm step, batch 16": step(16),
        "recommender, batch 1": recommender(1),
        "recommender, batch 256": recommender(256),
        "resnet50, batch 1": network("resnet50", 1),
        "bert, batch 1": network("bert", 1),
        "resnet50, batch 16": network("resnet50", 16),
        "bert, batch 8": network("bert", 8),
    }


def row(name: str, plan: PlacementPlan) -> dict[str, Any]:
    """What a plan says, in numbers."""
    here = plan.devices[0] if len(plan.devices) == 1 else " and ".join(plan.devices)
    counts = {device: sum(part.device == device for part in plan.parts) for device in plan.devices}
    main = max(counts, key=lambda device: counts[device])
    away = [f"{part.name} on {part.device}: {part.why}" for part in plan.parts if part.device != main]
    return {
        "name": name,
        "kept": here,
        "seconds": plan.seconds,
        "alone": {single.devices[0]: single.seconds for single in plan.singles},
        "mixed": None if plan.mixed is None else plan.mixed.seconds,
        "won": list(plan.won),
        "verdict": plan.verdict,
        "away": away,
        "weights": dict(plan.weight_bytes),
        "absent": [f"{each.name}: {each.reason}" for each in plan.absent],
    }


def lines(found: dict[str, Any], took: float) -> Iterator[str]:
    alone = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in found["alone"].items())
    mixed = f", mixed {time_text(found['mixed'])} ({found['won'][0]} of {found['won'][1]} rounds)"
    yield f"{found['name']}: {found['kept']} wins ({alone}{mixed if found['mixed'] else ''}); found in {took:.1f} s"
    yield f"    {found['verdict']}"
    for each in found["away"][:4]:
        yield f"    {each}"
    for each in found["absent"]:
        yield f"    absent: {each}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="the beginnings of names of rows; all, if none are given")
    parser.add_argument("--device", default="cuda", help="the other device than the CPU")
    parser.add_argument("--home", default="cpu", help="where models and inputs lie")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="tries the script")
    options = parser.parse_args()
    start, rows = time.monotonic(), list[dict[str, Any]]()
    for name, make in cases(options.tiny).items():
        if options.names and not any(name.startswith(each) for each in options.names):
            continue
        if time.monotonic() - start > options.seconds:
            print(f"{name}: not begun, there is no time")
            continue
        began = time.monotonic()
        torch.manual_seed(0)
        model, inputs = make()
        model = model.to(options.home)
        given = tuple(each.to(options.home) for each in (inputs if isinstance(inputs, tuple) else (inputs,)))
        plan = lampwork.place(model, given, devices=["cpu", options.device]).plan
        rows.append(row(name, plan))
        print("\n".join(lines(rows[-1], time.monotonic() - began)), flush=True)
        if options.plans:
            print(plan, flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
