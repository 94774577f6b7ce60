"""`python -m lampwork.bench [models] [--compilers ...] [--threads N ...] [--dtype ...] [--json FILE]`: networks under
every compiler.

`python -m lampwork.bench kernels`: single operators, against limits of the machine. `functions`: small functions at
three sizes, against every peer. `summary FILE ...`: what a run amounts to. `capture`: capture compared with
torch.compile's. `train`: steps of training.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from lampwork.bench import capture, summary
from lampwork.bench.compilers import COMPILERS, available
from lampwork.bench.functions import command as functions
from lampwork.bench.kernels import command as kernels
from lampwork.bench.machine import machine, where
from lampwork.bench.measure import Result
from lampwork.bench.models import WORKLOADS, names
from lampwork.bench.processes import answer, precompile
from lampwork.bench.tables import format_row, format_tables
from lampwork.bench.training import command as training
from lampwork.bench.workloads.workload import DTYPES, Precision

TIMEOUT_SECONDS = 600
OTHER = {
    "capture": capture.main,
    "functions": functions.main,
    "kernels": kernels.main,
    "summary": summary.main,
    "train": training.main,
}


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in OTHER:
        return OTHER[argv[0]](argv[1:])
    options = _parse(argv)
    precompile()
    compilers = available(options.compilers)
    results: list[Result] = []
    for dtype in options.dtype:
        for threads in options.threads:
            for model in options.models or names(dtype):
                for compiler in compilers:
                    results.append(run(model, compiler, threads, dtype, options.timeout))
                    print(format_row(results[-1]), flush=True)
    document = {"machine": machine(), "results": [asdict(r) for r in results]}
    print(f"\n{where(machine())}\n\n{format_tables(results)}\n")
    print("\n\n".join(summary.format_summary(s) for s in summary.summarize(results)))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(r.right for r in results if r.compiler == "lampwork") else 1


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lampwork.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", metavar="model", help=f"any of: {', '.join(WORKLOADS)}")
    parser.add_argument("--compilers", nargs="+", choices=list(COMPILERS), default=list(COMPILERS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=list(DTYPES),
        default=["f32"],
        help="of weights and inputs; int8: linear layers quantized dynamically, against eager in f32",
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS", help="of each process"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    options = parser.parse_args(argv)
    unknown = [name for name in options.models if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}; the models are {', '.join(WORKLOADS)}")
    return options


def run(
    model: str, compiler: str, threads: int, dtype: Precision = "f32", timeout: float = TIMEOUT_SECONDS
) -> Result:
    """Measure in a fresh process; a failure is a result that says why."""
    refused = COMPILERS[compiler].refuses.get(dtype)
    if refused is not None:
        return Result(model, compiler, threads, failure=refused, dtype=dtype)
    found = answer("lampwork.bench.measure", model, compiler, str(threads), dtype, timeout=timeout)
    if isinstance(found, str):
        return Result(model, compiler, threads, failure=found, dtype=dtype)
    return Result(**found)


if __name__ == "__main__":
    raise SystemExit(main())
