"""What the first call of a fresh process takes, stage by stage, and whether the next process finds anything done.

    python benchmarks/gpu_first_call.py [bert resnet50 gpt2] [--device cuda] [--dtype bf16] [--seconds 60]

Each run is a process of its own: eager; ours with nothing kept by anybody (no cubins, an empty compute cache of the
driver); the next process, which finds cubins in Lampwork's folder; ours with `cache="off"`, where the driver loads PTX;
and the next process, for which the driver has kept what it made of that. "libraries" is what cuBLAS, cuDNN and the
device need before their first calls, which eager pays too: it is done before, by small calls, in all of them. Stages of
one thread add up to the compilation; what several threads do ("threads:") is inside of the stage `codegen`, summed.
After `--seconds` no further network is begun.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

NETWORKS = ("bert", "resnet50", "gpt2")
WAYS = {  # by whose cache: Lampwork's, the driver's ("": an empty one)
    "eager": ("off", ""),
    "ours": ("cubins", ""),
    "ours, cubins found": ("cubins", ""),
    "ours, cache off": ("off", "driver"),
    "ours, off, driver's": ("off", "driver"),
}


class Sums:
    """Seconds in functions, of all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def watch(self, owner: Any, name: str, label: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                with self._lock:
                    self.seconds[label] = self.seconds.get(label, 0.0) + time.perf_counter() - start
                    self.calls[label] = self.calls.get(label, 0) + 1

        setattr(owner, name, watched)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def libraries(device: str, dtype: torch.dtype) -> None:
    """The first calls of cuBLAS, cuDNN, attention and the allocator."""
    x = torch.randn(64, 64, device=device, dtype=dtype)
    torch.addmm(x[0], x, x)
    torch.nn.functional.conv2d(torch.randn(1, 64, 8, 8, device=device, dtype=dtype), x.view(64, 64, 1, 1))
    torch.nn.functional.scaled_dot_product_attention(*(x.view(1, 1, 64, 64) for _ in range(3)))
    wait(device)


def child(name: str, way: str, device: str, dtype: torch.dtype, tiny: bool) -> dict[str, Any]:
    """One process."""
    start = time.perf_counter()
    import lampwork

    imported = time.perf_counter()
    import gpu_workloads

    torch.manual_seed(0)
    model, inputs = gpu_workloads.networks(tiny)[name]()
    model = model.to(device, dtype)
    inputs = tuple(
        each.to(device, dtype if each.is_floating_point() else None) for each in inputs
    )  # the device's context is there
    wait(device)
    before = time.perf_counter()
    with torch.no_grad():
        libraries(device, dtype)
        ready = time.perf_counter()
        sums, call = Sums(), model
        if way != "eager":
            from lampwork.cache import Store
            from lampwork.codegen.gpu.generator import GpuGenerator, PtxJit

            sums.watch(PtxJit, "emit", "LLVM, IR to PTX")
            sums.watch(PtxJit, "load", "driver, PTX to code")
            sums.watch(GpuGenerator, "emit", "kernels to IR")
            sums.watch(Store, "get", "of that cubins read")
            sums.watch(Store, "put", "of that cubins written")
            call = lampwork.compile(model)
        calls = []
        for _ in range(3):
            begin = time.perf_counter()
            call(*inputs)
            wait(device)
            calls.append(time.perf_counter() - begin)
    return {
        "import": imported - start,
        "libraries": ready - before,
        "first": calls[0],
        "later": min(calls[1:]),
        "stages": {} if way == "eager" else dict(call.stages.seconds),
        "threads": sums.seconds,
        "kernels": sums.calls.get("driver, PTX to code", 0),
    }


def run(name: str, way: str, options: argparse.Namespace, caches: Path) -> dict[str, Any]:
    """One process, by its answer."""
    cubins, driver = WAYS[way]
    environ = {
        **os.environ,
        "LAMPWORK_CACHE": str(caches / cubins) if cubins != "off" else "off",
        "CUDA_CACHE_PATH": str(caches / (driver or f"{way} alone")),
    }
    command = [
        sys.executable,
        __file__,
        name,
        "--child",
        way,
        "--device",
        options.device,
        "--dtype",
        options.dtype,
    ]
    command += ["--tiny"] if options.tiny else []
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def line(way: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"  {way}: {found['error']}"
    parts = [f"first call {found['first']:.2f} s, later {found['later'] * 1e3:.2f} ms"]
    parts.append(f"libraries before {found['libraries']:.2f} s")
    if found["stages"]:
        parts.append(", ".join(f"{stage} {seconds:.3f}" for stage, seconds in found["stages"].items()))
    if found["threads"]:
        told = ", ".join(f"{stage} {seconds:.3f}" for stage, seconds in found["threads"].items())
        parts.append(f"threads: {told} of {found['kernels']} kernels")
    return f"  {way}: " + "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bf16", choices=("f32", "bf16"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="tries the script")
    options = parser.parse_args()
    dtype = torch.float32 if options.dtype == "f32" else torch.bfloat16
    if options.child:
        print(json.dumps(child(options.names[0], options.child, options.device, dtype, options.tiny)))
        return
    start = time.monotonic()
    for name in options.names:
        if time.monotonic() - start > options.seconds:
            print(f"{name}: not begun, there is no time")
            continue
        print(f"{name} {options.dtype}")
        with tempfile.TemporaryDirectory() as caches:
            for way in WAYS:
                print(line(way, run(name, way, options, Path(caches))), flush=True)


if __name__ == "__main__":
    main()
