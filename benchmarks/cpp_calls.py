"""What a call of an artifact takes from C++ and from Python: networks that differ in how much a call has to do.

    python benchmarks/cpp_calls.py [--models bert resnet50] [--rounds 5] [--aotinductor]

Needs CMake, Ninja and a C++ compiler: it builds `lampwork_run` of the C++ runtime (cpp/), which links neither Python
nor libtorch. A round is one process of each way, in turns, on one thread; each loads the artifact, runs the network
once, and gives the median of further calls. Printed are the medians of the rounds, and the median of the ratios round
by round. AOTInductor is called from Python.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from warm_starts import workload as network

import lampwork

ROOT = Path(__file__).parents[1]
MODELS = ("linear", "bert", "resnet50")
CALLS = {"linear": 20000}
FEW = 9


class First(nn.Module):
    """The tensor of a network that is of interest."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        result = self.model(*inputs)
        return result if isinstance(result, Tensor) else result[0]


def workload(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if name == "linear":
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 16), nn.GELU()).eval(), (torch.randn(1, 16),)
    model, inputs = network(name)
    return First(model).eval(), inputs


@torch.no_grad()
def prepare(name: str, folder: Path, aotinductor: bool) -> None:
    """`name.lamp`, `name.case` with an input and eager's result, and `name.pt2`."""
    model, inputs = workload(name)
    lampwork.export(model, folder / f"{name}.lamp", inputs, targets="host", require="standalone")
    tensors = {f"in.{i}": value for i, value in enumerate(inputs)}
    save_file({**tensors, "out.0": model(*inputs).contiguous()}, folder / f"{name}.case")
    if aotinductor:
        exported = torch.export.export(model, inputs)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / f"{name}.pt2"))


@torch.no_grad()
def child(way: str, name: str, folder: Path) -> float:
    """The median of a call from Python, in microseconds."""
    tensors = load_file(folder / f"{name}.case")
    inputs = tuple(tensors[f"in.{i}"] for i in range(len(tensors) - 1))
    served: Callable[..., Any]
    if way == "python":
        served = lampwork.load(folder / f"{name}.lamp", trust=True)
    else:
        served = torch._inductor.aoti_load_package(str(folder / f"{name}.pt2"))
    served(*inputs)
    times: list[float] = []
    for _ in range(CALLS.get(name, FEW)):
        begin = time.perf_counter()
        served(*inputs)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def from_cpp(program: Path, name: str, folder: Path) -> float:
    """The same from C++; the result is held to eager's."""
    calls = str(CALLS.get(name, FEW))
    command = [program, folder / f"{name}.lamp", "forward", folder / f"{name}.case", "1e-2", "1", calls]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    found = re.search(r"median ([\d.]+) us", done.stdout)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"{name}: {done.stdout}{done.stderr}")
    return float(found[1])


def built(folder: Path) -> Path:
    subprocess.run(
        ["cmake", "-G", "Ninja", "-S", ROOT / "cpp", "-B", folder], check=True, capture_output=True
    )
    subprocess.run(["ninja", "-C", folder, "lampwork_run"], check=True, capture_output=True)
    return next(path for path in folder.rglob("lampwork_run") if os.access(path, os.X_OK))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--aotinductor", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.child:
        way, name, made = given.child
        print(child(way, name, Path(made)))
        return
    ways = ("python", "aotinductor") if given.aotinductor else ("python",)
    with tempfile.TemporaryDirectory() as folder:
        program = built(Path(folder) / "build")
        head = "".join(f" {way}, us | C++ over it |" for way in ways)
        print(f"| network | C++, us |{head}")
        print("|---|---|" + "---|---|" * len(ways))
        for name in given.models:
            prepare(name, Path(folder), given.aotinductor)
            compare(name, ways, program, Path(folder), given.rounds)


def compare(name: str, ways: tuple[str, ...], program: Path, folder: Path, rounds: int) -> None:
    ours: list[float] = []
    theirs: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        ours.append(from_cpp(program, name, folder))
        for way in ways:
            command = [sys.executable, __file__, "--child", way, name, str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            theirs[way].append(float(done.stdout.splitlines()[-1]))
    row = f"| {name} | {statistics.median(ours):.1f} |"
    for way in ways:
        ratio = statistics.median(mine / other for mine, other in zip(ours, theirs[way], strict=True))
        row += f" {statistics.median(theirs[way]):.1f} | {ratio:.2f} |"
    print(row, flush=True)


if __name__ == "__main__":
    main()
