"""Two checkouts of Lampwork against each other: `python benchmarks/compare_commits.py BASE NEW [models] ...`.

    python benchmarks/compare_commits.py ../lampwork-base . bert resnet50 --threads 1 2 --rounds 6 --json ab.json

BASE and NEW are directories whose `src/lampwork` has its extension built. Each round starts one process for each side,
in alternating order, on the workloads of the NEW checkout, so that both measure the same networks. Printed are medians
over rounds: the first call in seconds of processor time, a steady call, and NEW / BASE (below 1: NEW is faster).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ONE = r"""
import json, statistics, sys, time
from pathlib import Path
base, new, model, threads, dtype, seconds = sys.argv[1:]
sys.path.insert(0, base + "/src")
import torch
import lampwork
if not lampwork.__file__.startswith(base + "/"):
    raise SystemExit(f"lampwork came from {lampwork.__file__}, not from {base}")
# The compiler is the base's or the new one's, the networks are always the new one's.
import lampwork.bench
lampwork.bench.__path__[:] = [new + "/src/lampwork/bench"]
from lampwork.bench.models import load
torch.set_num_threads(int(threads))
workload = load(model, dtype=dtype)
with torch.no_grad():
    start = time.process_time()
    compiled = lampwork.compile(workload.fn, options={"strict": True})
    compiled(*workload.inputs)
    first = time.process_time() - start
    for _ in range(3):
        compiled(*workload.inputs)
    start = time.perf_counter()
    compiled(*workload.inputs)
    count = max(1, int(0.02 / max(time.perf_counter() - start, 1e-7)))
    samples = []
    end = time.perf_counter() + float(seconds)
    while time.perf_counter() < end or len(samples) < 5:
        start = time.perf_counter()
        for _ in range(count):
            compiled(*workload.inputs)
        samples.append((time.perf_counter() - start) / count)
print(json.dumps([first, statistics.median(samples)]))
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One process: seconds of processor time of the first call, seconds of a steady one."""

    first_s: float
    steady_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of one model; `failure` says why there are none."""

    model: str
    threads: int
    base: Sample | None = None
    new: Sample | None = None
    failure: str = ""


def median(samples: list[Sample]) -> Sample:
    return Sample(
        statistics.median(s.first_s for s in samples), statistics.median(s.steady_s for s in samples)
    )


def measure(root: Path, networks: Path, model: str, threads: int, dtype: str, seconds: float) -> Sample | str:
    """A sample, or why there is none."""
    arguments = [str(root), str(networks), model, str(threads), dtype, str(seconds)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", ONE, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return Sample(*json.loads(done.stdout.splitlines()[-1]))


def compare(base: Path, new: Path, model: str, threads: int, dtype: str, seconds: float, rounds: int) -> Row:
    sides = {"base": base, "new": new}
    found: dict[str, list[Sample]] = {"base": [], "new": []}
    for i in range(rounds):
        for side in ("base", "new") if i % 2 == 0 else ("new", "base"):
            sample = measure(sides[side], new, model, threads, dtype, seconds)
            if isinstance(sample, str):
                return Row(model, threads, failure=f"{side}: {sample}")
            found[side].append(sample)
    return Row(model, threads, median(found["base"]), median(found["new"]))


def format_table(rows: list[Row]) -> str:
    lines = [
        "| model | threads | first call s: base | new | new/base | call ms: base | new | new/base |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        if r.base is None or r.new is None:
            lines.append(f"| {r.model} | {r.threads} | failed: {r.failure} | | | | | |")
            continue
        first = f"{r.base.first_s:.3f} | {r.new.first_s:.3f} | {r.new.first_s / r.base.first_s:.3f}"
        steady = f"{r.base.steady_s * 1e3:.4g} | {r.new.steady_s * 1e3:.4g}"
        lines.append(
            f"| {r.model} | {r.threads} | {first} | {steady} | {r.new.steady_s / r.base.steady_s:.3f} |"
        )
    done = [(r.base, r.new) for r in rows if r.base is not None and r.new is not None]
    if done:
        first = statistics.geometric_mean(new.first_s / base.first_s for base, new in done)
        steady = statistics.geometric_mean(new.steady_s / base.steady_s for base, new in done)
        lines.append(f"| geometric mean | | | | {first:.3f} | | | {steady:.3f} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("models", nargs="*", default=["mlp", "bert", "resnet50"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1])
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16", "f16"])
    parser.add_argument("--rounds", type=int, default=4, help="processes of each side")
    parser.add_argument("--seconds", type=float, default=1.5, help="of steady calls in each process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    base, new = options.base.resolve(), options.new.resolve()
    for root in (base, new):
        if not (root / "src" / "lampwork").is_dir():
            parser.error(f"{root} has no src/lampwork")
    rows: list[Row] = []
    for threads in options.threads:
        for model in options.models:
            rows.append(compare(base, new, model, threads, options.dtype, options.seconds, options.rounds))
            print(format_table(rows[-1:]).splitlines()[2], flush=True)
    print(f"\n{format_table(rows)}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    return 1 if any(r.failure for r in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
