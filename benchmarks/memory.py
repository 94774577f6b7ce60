"""What a network takes in memory: weights, what is made of them, and what a call needs besides.

    python benchmarks/memory.py [resnet50 bert ...] [--json FILE]

Each network runs in children of its own, forked after everything is imported: eager, compiled, and compiled with
`weights="packed"`. A child builds the network, calls it until nothing more is compiled, then has the kernel forget the
peak, and calls it again. Printed are MB of resident memory above what the process had before the network was built:

    rest    between calls: weights, packed copies, machine code, memory kept for the next call
    peak    the most during a call
    first   the most during the first call, with compilation

and the peak against eager's. Memory is what the system cannot get back by dropping pages of files (code, for the most
part), and what is in memory of the files of released weights.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import lampwork
from lampwork.bench.models import load
from lampwork.runtime.packed_weights import SUFFIX

NETWORKS = (
    "alexnet",
    "resnet18",
    "resnet50",
    "densenet121",
    "mobilenet_v3",
    "efficientnet_b0",
    "convnext",
    "vit",
    "bert",
    "bert_8",
    "gpt2",
    "llama",
    "lstm",
)
WAYS: dict[str, dict[str, Any] | None] = {"eager": None, "default": {}, "packed": {"weights": "packed"}}
CALLS = 4


def resident(name: str) -> float:
    """MB, of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def held() -> float:
    """MB of memory that belongs to this process alone, and of weights in files."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            ours = SUFFIX in line
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1])
    return resident("RssAnon") + found / 1024


def peak_of(call: Callable[[], object]) -> float:
    """The most that was held during a call, above what was held before it: what came on top of it at once."""
    settle()
    before = resident("VmRSS")
    forget_peak()
    call()
    return max(0.0, resident("VmHWM") - before)


def settle() -> None:
    """Give back to the system what nobody holds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measured(name: str, options: dict[str, Any] | None) -> dict[str, float]:
    """rest, peak and first, of a network that is built here."""
    settle()
    before = held()
    work = load(name)
    settle()
    weights = held() - before
    fn = work.fn if options is None else lampwork.compile(work.fn, options=options)
    with torch.no_grad():
        first = weights + peak_of(lambda: fn(*work.inputs))
        for _ in range(CALLS):
            fn(*work.inputs)
        settle()
        rest = held() - before
        peak = rest + max(peak_of(lambda: fn(*work.inputs)) for _ in range(CALLS))
    return {"weights": weights, "rest": rest, "peak": peak, "first": first}


def in_child(measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What `measure` returns in a child of this process, on one thread."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        torch.set_num_threads(1)
        with os.fdopen(write, "w") as pipe:
            json.dump(measure(), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    if os.waitpid(pid, 0)[1] != 0 or not text:
        raise RuntimeError("the child that measured failed")
    return json.loads(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    # What every compilation needs is there before anything is measured.
    warm = torch.nn.Linear(8, 8)
    with torch.no_grad():
        lampwork.compile(warm)(torch.ones(2, 8))
        load("bert")
    found: dict[str, Any] = {}
    print(f"{'':16} {'weights':>8} {'way':>8} {'rest':>8} {'peak':>8} {'first':>8} {'peak/eager':>10}")
    for name in given.networks:
        found[name] = {way: in_child(partial(measured, name, options)) for way, options in WAYS.items()}
        for way, row in found[name].items():
            ratio = row["peak"] / found[name]["eager"]["peak"]
            numbers = " ".join(f"{row[key]:8.1f}" for key in ("rest", "peak", "first"))
            print(f"{name:16} {row['weights']:8.1f} {way:>8} {numbers} {ratio:10.2f}")
        sys.stdout.flush()
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
