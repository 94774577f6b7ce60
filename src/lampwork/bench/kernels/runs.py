"""What the benches of single functions have in common: the command line, the loop over threads, and the JSON."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from lampwork.bench.kernels.case import Call
from lampwork.bench.machine import machine
from lampwork.inspect.machine.limits import Limits, measure_limits

C = TypeVar("C")
R = TypeVar("R")


def seconds_of(call: Call, turns: int) -> float:
    """Of a call, on average."""
    start = time.perf_counter()
    for _ in range(turns):
        call()
    return (time.perf_counter() - start) / turns


def arguments(command: str, description: str | None, pattern: str, seconds: float) -> argparse.ArgumentParser:
    """The options that all have. pattern: what --only is matched with; seconds: of each, if none are given."""
    parser = argparse.ArgumentParser(
        prog=f"python -m lampwork.bench {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="PATTERN", help=f"regular expression on {pattern!r}")
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--seconds", type=float, default=seconds, help=f"of each, {seconds} by default")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def format_limits(limits: Limits) -> str:
    """One sentence."""
    bytes_ = f", {limits.int8:.0f} Gop/s of int8" if limits.int8 else ""
    return (
        f"Limits of {limits.threads} thread{'s' * (limits.threads > 1)}: {limits.gflops:.0f} GFLOP/s of float32 "
        f"multiply-adds{bytes_}; from memory {limits.read:.1f} GB/s read, "
        f"{limits.copy:.1f} copied; in the shared cache {limits.shared_read:.0f} and {limits.shared_copy:.0f}, in a "
        f"core's own {limits.private_read:.0f} and {limits.private_copy:.0f}."
    )


def run(
    threads: Sequence[int],
    chosen: Sequence[C],
    measure: Callable[[C, Limits], R],
    line: Callable[[R], str | None],
) -> tuple[list[Limits], list[R]]:
    """Measure all of `chosen` with each number of threads, and print a line of each that has one."""
    limits: list[Limits] = []
    found: list[R] = []
    for count in threads:
        limits.append(measure_limits(count))
        print(f"{format_limits(limits[-1])}\n", flush=True)
        for case in chosen:
            found.append(measure(case, limits[-1]))
            text = line(found[-1])
            if text is not None:
                print(text, flush=True)
    return limits, found


def write(path: Path | None, limits: Sequence[Limits], key: str, rows: Sequence[Any]) -> None:
    """The limits and rows of a run as JSON, where a file is asked for."""
    if path is None:
        return
    document = {"machine": machine(), "limits": [asdict(x) for x in limits], key: [asdict(r) for r in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n")
