"""How the first call grows with depth: `python -m lampwork.bench.growth [--layers FEW MANY]`.

Equal layers share their machine code, so what grows is capture, passes and packing of weights; the ratio of the first
calls stays well below the ratio of the depths. Each depth is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

import lampwork
from lampwork.bench.models import bert
from lampwork.records import record

TOKENS = 128
VOCABULARY = 30522


@record
class Growth:
    """A BERT of `layers` layers: seconds of its first call, how many of them compiling, and what it compiled to.

    The rest of the first call is its run and the packing of the weights, which grow with the model's size.

    `distinct_functions` is the number of machine-code functions, `kernel_calls` how often a run calls one.
    """

    layers: int
    first_call_s: float
    compile_s: float
    distinct_functions: int
    kernel_calls: int


def first_call(layers: int, threads: int = 1) -> Growth:
    """Build, compile and run once in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = bert(layers)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    with torch.no_grad():
        before = lampwork.stats()["compile_seconds"]
        start = time.perf_counter()
        compiled: Any = lampwork.compile(model)
        compiled(tokens)
        seconds = time.perf_counter() - start
    compiling = lampwork.stats()["compile_seconds"] - before
    counts = compiled.stages.counts
    return Growth(layers, seconds, compiling, counts["distinct functions"], counts["kernel calls"])


def in_fresh_process(layers: int, threads: int) -> Growth:
    """`first_call` in a process of its own.

    Raises:
        subprocess.CalledProcessError: that process failed; its messages are on stderr.
    """
    command = [sys.executable, "-m", "lampwork.bench.growth", "--one", str(layers), "--threads", str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Growth(**json.loads(done.stdout.splitlines()[-1]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lampwork.bench.growth", description=__doc__)
    parser.add_argument("--layers", nargs=2, type=int, default=(12, 48), metavar=("FEW", "MANY"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", type=int, metavar="LAYERS", help="measure here and print JSON")
    options = parser.parse_args(argv)
    if options.one is not None:
        print(json.dumps(asdict(first_call(options.one, options.threads))))
        return 0
    few, many = (in_fresh_process(layers, options.threads) for layers in options.layers)
    for growth in (few, many):
        print(
            f"BERT of {growth.layers:3} layers: first call {growth.first_call_s:6.2f} s, "
            f"{growth.compile_s:.2f} s of it compiling, "
            f"{growth.distinct_functions} distinct functions, {growth.kernel_calls} kernel calls"
        )
    print(
        f"{many.layers / few.layers:.1f}x the layers, "
        f"{many.compile_s / few.compile_s:.2f}x the compiling, "
        f"{many.first_call_s / few.first_call_s:.2f}x the first call"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
