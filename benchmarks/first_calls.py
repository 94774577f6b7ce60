"""First calls in new processes: on an empty cache folder, on one that has the model, and without a cache.

    OMP_NUM_THREADS=1 python benchmarks/first_calls.py bert resnet50 gpt2 --rounds 5

Each round starts one process for each column, in turns; printed are medians over the rounds: wall time and processor
time of the first call, the second call, and what of the first was capture and passes. A process has imported torch,
transformers and Lampwork, run the model eager and compiled a small function, before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COLUMNS = ("off", "empty", "kept")

ONE = r"""
import json, sys, time
import torch, transformers
import lampwork

transformers.utils.logging.set_verbosity_error()
torch.manual_seed(0)
name = sys.argv[1]
if name == "bert":
    model, inputs = transformers.BertModel(transformers.BertConfig()), (torch.randint(0, 30000, (1, 128)),)
elif name == "gpt2":
    model, inputs = transformers.GPT2LMHeadModel(transformers.GPT2Config()), (torch.randint(0, 30000, (1, 128)),)
elif name == "resnet50":
    model, inputs = transformers.ResNetModel(transformers.ResNetConfig()), (torch.randn(1, 3, 224, 224),)
else:
    raise SystemExit(f"no model {name}")
model.eval()
with torch.no_grad():
    model(*inputs)
    lampwork.compile(torch.nn.Linear(8, 8))(torch.randn(2, 8))
    compiled = lampwork.compile(model)
    start, spent = time.perf_counter(), time.process_time()
    compiled(*inputs)
    first, spent, start = time.perf_counter() - start, time.process_time() - spent, time.perf_counter()
    compiled(*inputs)
    second = time.perf_counter() - start
found = {"first": first, "processor": spent, "second": second, "llvm": "llvmlite" in sys.modules}
print(json.dumps({**found, **{name: compiled.stages.seconds.get(name, 0.0) for name in ("capture", "passes")}}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["bert", "resnet50", "gpt2"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| model | cache | first call, s | processor, s | second, s | capture, s | passes, s | LLVM |")
    print("|---|---|---|---|---|---|---|---|")
    for model in options.models:
        for line in measured(model, options.rounds):
            print(line, flush=True)


def measured(model: str, rounds: int) -> list[str]:
    found: dict[str, list[dict[str, Any]]] = {column: [] for column in COLUMNS}
    with tempfile.TemporaryDirectory() as folder:
        once(model, f"{folder}/kept")
        for number in range(rounds):
            for column in COLUMNS:
                cache = {"off": "off", "kept": f"{folder}/kept"}.get(column, f"{folder}/{number}")
                found[column].append(once(model, cache))
    lines: list[str] = []
    for column, runs in found.items():
        numbers = [
            f"{statistics.median(run[name] for run in runs):.3f}"
            for name in ("first", "processor", "second", "capture", "passes")
        ]
        loaded = "loaded" if any(run["llvm"] for run in runs) else "not loaded"
        lines.append(f"| {' | '.join((model, column, *numbers, loaded))} |")
    return lines


def once(model: str, cache: str) -> dict[str, Any]:
    source = str(Path(__file__).resolve().parent.parent / "src")
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "LAMPWORK_CACHE": cache, "PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run(
        [sys.executable, "-c", ONE, model], capture_output=True, text=True, env=environment, check=False
    )
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
