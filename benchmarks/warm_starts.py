"""How long the first call takes where a network was compiled before: by an earlier process, or ahead of time.

    python benchmarks/warm_starts.py                        # BERT-base, ResNet-50, GPT-2 by all ways that are installed
    python benchmarks/warm_starts.py --models bert --ways cache artifact --repeats 5

| way | what an earlier process left | what is timed |
|---|---|---|
| `cold` | nothing | `lampwork.compile(model)` and its first call |
| `cache` | Lampwork's cache on disk | the same |
| `artifact` | `model.lamp` | `lampwork.load(path, trust=True)` and the first call |
| `packed` | `model.lamp` for this machine, made with `prepack=True` | the same |
| `inductor` | torch.compile's caches | `torch.compile(model)` and its first call |
| `aotinductor` | `model.pt2` with its shared library | `torch._inductor.aoti_load_package(path)` and the first call |
| `onnxruntime` | `model.onnx`, optimized by an earlier session | `InferenceSession(path)` and the first call |

Each is timed in a process of its own that is warm: its packages are imported, threads and allocators have worked (the
network ran in eager where the way has the network), and the way has served a small network before. All inputs are the
benchmark suite's: one sequence of 128 tokens, one image of 224 x 224. Ways are interleaved, and medians are printed,
with the largest difference from eager's result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Start = Callable[[], Callable[..., Any]]
MODELS = ("bert", "resnet50", "gpt2")
WAYS = ("cold", "cache", "artifact", "packed", "inductor", "aotinductor", "onnxruntime")
NEEDS_MODEL = ("cold", "cache", "inductor")
TIMEOUT = 900.0


def workload(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from lampwork.bench.workloads.convolutional import CONVOLUTIONAL
    from lampwork.bench.workloads.transformers import TRANSFORMERS

    torch.manual_seed(0)
    model, inputs = {**CONVOLUTIONAL, **TRANSFORMERS}[name]()
    return model, tuple(inputs)


def small() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), (torch.randn(2, 8),)


SUFFIXES = {"artifact": "lamp", "packed": "packed.lamp", "aotinductor": "pt2", "onnxruntime": "onnx"}


def file_of(way: str, folder: Path, name: str) -> Path:
    return folder / f"{name}.{SUFFIXES[way]}"


def prepare(way: str, folder: Path, name: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Leave behind what a later process starts from."""
    if way in ("cache", "inductor"):
        compiler(way)(model)(*inputs)
    elif way == "artifact":
        import lampwork

        lampwork.export(model, file_of(way, folder, name), inputs)
    elif way == "packed":
        import lampwork

        lampwork.export(model, file_of(way, folder, name), inputs, targets="host", prepack=True)
    elif way == "aotinductor":
        exported = torch.export.export(model, inputs)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(file_of(way, folder, name)))
    elif way == "onnxruntime":
        import onnxruntime

        made = folder / f"{name}.exported.onnx"
        torch.onnx.export(model, inputs, str(made), dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(file_of(way, folder, name))
        onnxruntime.InferenceSession(str(made), options, providers=["CPUExecutionProvider"])


def compiler(way: str) -> Callable[[nn.Module], Callable[..., Any]]:
    if way == "inductor":
        return torch.compile
    import lampwork

    return lampwork.compile


def start(way: str, folder: Path, name: str, model: nn.Module | None) -> Callable[..., Any]:
    """What serves calls, from what an earlier process left."""
    if model is not None:
        return compiler(way)(model)
    path = str(file_of(way, folder, name))
    if way in ("artifact", "packed"):
        import lampwork

        return lampwork.load(path, trust=True)
    if way == "aotinductor":
        return torch._inductor.aoti_load_package(path)
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        given = {key: value.numpy() for key, value in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, given)[0])

    return run


def tensor_of(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


@torch.no_grad()
def child(task: str, way: str, name: str, folder: Path) -> dict[str, float]:
    kept = folder / f"{name}.reference"
    if task == "reference":
        model, inputs = workload(name)
        torch.save((inputs, model(*inputs)), kept)
        return {}
    if task == "prepare":
        prepare(way, folder, "small", *small())
        prepare(way, folder, name, *workload(name))
        return {}
    inputs, expected = torch.load(kept)
    model: nn.Module | None = None
    tiny: nn.Module | None = None
    if way in NEEDS_MODEL:
        model, _ = workload(name)
        tiny, _ = small()
        model(*inputs)
    start(way, folder, "small", tiny)(*small()[1])
    begin = time.perf_counter()
    served = start(way, folder, name, model)
    ready = time.perf_counter()
    result = tensor_of(served(*inputs))
    first = time.perf_counter()
    later = min(timed(lambda: served(*inputs)) for _ in range(5))
    error = float((result - expected).abs().max())
    return {"ready": ready - begin, "first call": first - begin, "call": later, "error": error}


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def ask(task: str, way: str, name: str, folder: Path) -> dict[str, float] | str:
    """What a process of its own answers, or why it does not."""
    env = {
        **os.environ,
        "LAMPWORK_CACHE": "off" if way == "cold" else str(folder / "lampwork"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    command = [sys.executable, __file__, "--child", task, way, name, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT:g} s"
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:160]
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        task, way, name, folder = given.child
        print(json.dumps(child(task, way, name, Path(folder))))
        return
    print("| network | way | ready, s | first call, s | a call, s | difference | file or cache, MB |")
    print("|---|---|---|---|---|---|---|")
    for name in given.models:
        with tempfile.TemporaryDirectory() as made:
            table(name, given.ways, given.repeats, Path(made))


def table(name: str, ways: list[str], repeats: int, folder: Path) -> None:
    ask("reference", "cold", name, folder)
    able: list[str] = []
    for way in ways:
        said = ask("prepare", way, name, folder)
        if isinstance(said, str):
            print(f"| {name} | {way} | {said} | | | | |", flush=True)
        else:
            able.append(way)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in able}
    for _ in range(repeats):
        for way in able:
            said = ask("measure", way, name, folder)
            if isinstance(said, str):
                print(f"| {name} | {way} | {said} | | | | |", flush=True)
            else:
                found[way].append(said)
    for way, answers in found.items():
        if answers:
            ready, first, call = (
                statistics.median(each[key] for each in answers) for key in ("ready", "first call", "call")
            )
            error = max(each["error"] for each in answers)
            size = megabytes(way, folder, name)
            print(
                f"| {name} | {way} | {ready:.3f} | {first:.3f} | {call:.4f} | {error:.1e} | {size:.1f} |",
                flush=True,
            )


def megabytes(way: str, folder: Path, name: str) -> float:
    if way in ("cold", "cache", "inductor"):
        place = folder / ("inductor" if way == "inductor" else "lampwork")
        files = [path for path in place.rglob("*") if path.is_file()] if way != "cold" else []
    else:
        path = file_of(way, folder, name)
        files = [each for each in folder.glob(f"{path.name}*") if each.is_file()]
    return sum(path.stat().st_size for path in files) / 1e6


if __name__ == "__main__":
    main()
