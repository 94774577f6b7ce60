"""Generated kernels of each family under compute-sanitizer: what they read and write, races, and barriers.

    python benchmarks/gpu_sanitize.py [--tools memcheck racecheck synccheck] [--seconds 300]

A process for each tool, side by side, in which each function is called once or twice; only generated kernels are looked
at. `memcheck` knows the bounds of each tensor, since torch's allocator keeps no memory there. The others try what has
groups of threads: reductions, softmax, norms, scans, transpositions. Ends with 1 if a tool reports anything, or has not
come to its summary; where there is no compute-sanitizer it says so and ends with 0.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SHARED = (
    "sum of rows", "sum of columns", "sum of all", "reductions of three", "shared sums", "softmax", "norms",
    "group norm", "cross entropy", "permutes", "scans",
)  # fmt: skip
ALONE = (
    "chain", "chain of halves", "strides and broadcasting", "casts", "integers", "comparisons", "views", "joins",
    "gathers", "in place", "random", "linear gelu", "batch norm",
)  # fmt: skip
TOOLS = {"memcheck": (*SHARED, *ALONE), "racecheck": SHARED, "synccheck": SHARED}
CALLS = 2  # of a function: the first ones of its shapes
TRAINED = "a step with AdamW"
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
NOTHING = 77  # how the worker says that there is no card
SHOWN = 30  # lines of a report


@dataclass(frozen=True, slots=True)
class Report:
    tool: str
    seconds: float
    functions: int
    problem: str


# --- under the tool ---------------------------------------------------------------------------------------------------


def work(names: Sequence[str], device: str) -> None:
    """Call functions in this process; a line for each."""
    import gpu_cases
    from gpu_smoke import moved
    from torch.utils import _pytree as pytree

    import lampwork

    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(NOTHING)
    cases = gpu_cases.cases()
    for name in names:
        torch.manual_seed(0)
        case = cases[name]
        fn: Any = moved(case.fn, device)
        for call in list(case.make())[:CALLS]:
            run(
                lampwork.compile(fn, dynamic=False), pytree.tree_map(lambda x: moved(x, device), call), device
            )
            lampwork.reset_stats()
        print(f"called {name}", flush=True)
    step_of_adamw(device)
    print(f"called {TRAINED}", flush=True)


def run(function: Callable[..., object], args: tuple[Any, ...], device: str) -> None:
    function(*args)
    if device == "cuda":
        torch.cuda.synchronize()


def step_of_adamw(device: str) -> None:
    """Forward, backward, and the kernel over all parameters, whose lengths no vector divides."""
    import lampwork

    net = torch.nn.Sequential(torch.nn.Linear(33, 65), torch.nn.LayerNorm(65), torch.nn.Linear(65, 7)).to(
        device
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    optimizer.step = lampwork.compile(optimizer.step)
    compiled = lampwork.compile(lambda x: net(x).square().mean())
    for _ in range(2):
        compiled(torch.randn(5, 33, device=device)).backward()
        run(optimizer.step, (), device)


# --- the tools --------------------------------------------------------------------------------------------------------


def sanitizer() -> str | None:
    """The program, where CUDA's folders have it if the path has not."""
    places = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), "/usr/local/cuda"]
    for each in (shutil.which("compute-sanitizer"), *(f"{place}/bin/compute-sanitizer" for place in places)):
        if each is not None and Path(each).exists():
            return each
    return None


def examined(program: str, tool: str, seconds: float) -> Report:
    """What a tool says of its functions."""
    start = time.monotonic()
    command = [program, "--tool", tool, "--error-exitcode", "99", "--kernel-name", "kns=lw_"]
    command += [sys.executable, __file__, "--worker", *TOOLS[tool]]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode()
        called = len(re.findall(r"^called ", output, re.MULTILINE))
        return Report(tool, time.monotonic() - start, called, f"no end after {seconds:.0f} s")
    output = done.stdout + done.stderr
    return Report(
        tool, time.monotonic() - start, len(re.findall(r"^called ", output, re.MULTILINE)),
        problem(output, done.returncode, len(TOOLS[tool]) + 1),
    )  # fmt: skip


def problem(output: str, code: int, functions: int) -> str:
    """What is wrong with what a tool has printed; "" if nothing is."""
    if code == NOTHING:
        return "the process finds no CUDA device"
    found = SUMMARY.findall(output)
    called = len(re.findall(r"^called ", output, re.MULTILINE))
    told = [line for line in output.splitlines() if line.startswith("=========")] or output.splitlines()[
        -SHOWN:
    ]
    shown = "\n".join(told[:SHOWN])
    if not found:
        return f"no summary; it ended with {code}\n{shown}"
    if any(int(number) for pair in found for number in pair if number):
        return shown
    if code or called < functions:
        return f"it ended with {code} after {called} of {functions} functions\n" + "\n".join(
            output.splitlines()[-SHOWN:]
        )
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--seconds", type=float, default=300, help="for a tool")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="of --worker")
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.device)
        return 0
    program = sanitizer()
    if program is None:
        print("skipped: compute-sanitizer is not on this machine (a part of the CUDA toolkit)")
        return 0
    with ThreadPoolExecutor(len(options.tools)) as pool:
        reports = list(pool.map(lambda tool: examined(program, tool, options.seconds), options.tools))
    for each in reports:
        print(
            f"{each.tool}: {each.functions} functions in {each.seconds:.0f} s: {each.problem or 'no errors'}"
        )
    return 1 if any(each.problem for each in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
