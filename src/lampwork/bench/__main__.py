"""`python -m lampwork.bench [models] [--compilers ...] [--threads N ...] [--json FILE]`, and
`python -m lampwork.bench capture`, which compares capture with torch.compile's."""

from __future__ import annotations

import argparse
import compileall
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from lampwork.bench import capture
from lampwork.bench.compilers import COMPILERS
from lampwork.bench.machine import machine
from lampwork.bench.measure import Result
from lampwork.bench.models import WORKLOADS

TIMEOUT_SECONDS = 600


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["capture"]:
        return capture.main(argv[1:])
    parser = argparse.ArgumentParser(prog="python -m lampwork.bench", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=f"any of: {', '.join(WORKLOADS)}")
    parser.add_argument("--compilers", nargs="+", choices=list(COMPILERS), default=list(COMPILERS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    options = parser.parse_args(argv)
    unknown = [name for name in options.models if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}; the models are {', '.join(WORKLOADS)}")
    # As an installer does for every package, and so for the peers: a first call should not parse Python source.
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)
    compilers = [name for name in options.compilers if _available(name)]
    results: list[Result] = []
    for threads in options.threads:
        for model in options.models or list(WORKLOADS):
            for compiler in compilers:
                result = run(model, compiler, threads)
                results.append(result)
                print(format_row(result), flush=True)
    print()
    print(format_tables(results))
    if options.json:
        document = {"machine": machine(), "results": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(r.right for r in results if r.compiler == "lampwork") else 1


def _available(name: str) -> bool:
    missing = COMPILERS[name].missing()
    if missing:
        print(f"{name}: skipped, the package {missing} is not installed", file=sys.stderr)
    return missing is None


def run(model: str, compiler: str, threads: int) -> Result:
    """Measure in a fresh process; a failure is a result that says why."""
    command = [sys.executable, "-m", "lampwork.bench.measure", model, compiler, str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Result(model, compiler, threads, failure=f"no result within {TIMEOUT_SECONDS} s")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Result(model, compiler, threads, failure=last[:200])
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def format_row(r: Result) -> str:
    head = f"{r.threads} thread{'s' if r.threads > 1 else ' '} {r.model:20} {r.compiler:36}"
    if r.failure:
        return f"{head} failed: {r.failure}"
    verdict = "" if r.right else f"  WRONG: error {r.error:.2e}, eager's {r.eager_error:.2e}"
    return (
        f"{head} first call {r.first_call_s:7.2f} s  run {r.run_s * 1e3:10.4f} ms  "
        f"eager {r.eager_s * 1e3:10.4f} ms  {r.speedup:5.2f}x  peak {r.peak_bytes / 2**20:6.0f} MiB{verdict}"
    )


def format_tables(results: list[Result]) -> str:
    """Markdown: speed-up over eager, and first call, one table per number of threads."""
    parts: list[str] = []
    for threads in sorted({r.threads for r in results}):
        rows = [r for r in results if r.threads == threads]
        plural = "s" if threads > 1 else ""
        parts.append(f"Speed-up over eager, {threads} thread{plural}\n\n{_table(rows, _speed)}")
        parts.append(f"First call, seconds, {threads} thread{plural}\n\n{_table(rows, _first)}")
        parts.append(f"Peak memory of runs, MiB, {threads} thread{plural}\n\n{_table(rows, _peak)}")
    return "\n\n".join(parts)


def _table(rows: list[Result], cell: Callable[[Result], str]) -> str:
    models = list(dict.fromkeys(r.model for r in rows))
    compilers = list(dict.fromkeys(r.compiler for r in rows))
    found = {(r.model, r.compiler): r for r in rows}
    lines = [f"| model | {' | '.join(compilers)} |", f"|---|{'---|' * len(compilers)}"]
    for model in models:
        cells = [cell(found[model, c]) if (model, c) in found else "" for c in compilers]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _speed(r: Result) -> str:
    if r.failure:
        return "failed"
    if r.compiler == "eager":
        return f"{r.run_s * 1e3:.4g} ms"
    return f"{r.speedup:.2f}" if r.right else f"{r.speedup:.2f} (wrong)"


def _first(r: Result) -> str:
    return "failed" if r.failure or math.isnan(r.first_call_s) else f"{r.first_call_s:.2f}"


def _peak(r: Result) -> str:
    return "failed" if r.failure else f"{r.peak_bytes / 2**20:.0f}"


if __name__ == "__main__":
    raise SystemExit(main())
