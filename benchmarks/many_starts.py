"""Many processes at once on one cold cache, and the same in other folders, under other homes and hash seeds.

    python benchmarks/many_starts.py [--processes 32] [--model resnet50]

First all processes begin together on an empty cache: how many programs they compiled in all, beside how many different
ones there are, which is the least. Then one process after another starts in a copy of the package of its own, with a
home, a working directory and a hash seed of its own: how many programs it found in the cache.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lampwork

CHILD = """
import sys
import torch
from warm_starts import small, workload
import lampwork
from lampwork import counters

torch.set_num_threads(1)
model, inputs = workload(sys.argv[1]) if sys.argv[1] != "small" else small()
print("ready", flush=True)
sys.stdin.read()  # until all begin
with torch.no_grad():
    found, expected = lampwork.compile(model)(*inputs), model(*inputs)
found, expected = (value if isinstance(value, torch.Tensor) else value[0] for value in (found, expected))
assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3), (found - expected).abs().max()
count = counters.snapshot({})
print(count["backend_compiles"], count["backend_restored"])
"""


def start(model: str, cache: Path, package: Path, where: Path, seed: int) -> subprocess.Popen[str]:
    """A process that says when it is ready, and then waits for the end of its input."""
    paths = [str(package), str(Path(__file__).parent)]
    env = {
        **os.environ,
        "HOME": str(where),
        "LAMPWORK_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": str(seed),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    command = [sys.executable, "-c", CHILD, model]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=where, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def finish(processes: list[subprocess.Popen[str]]) -> tuple[list[tuple[int, int]], float]:
    """What each compiled and found, from when all were ready; and how long that took."""
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    begin = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    counts: list[tuple[int, int]] = []
    for process in processes:
        said, wrong = process.communicate()
        if process.returncode != 0:
            raise SystemExit(f"a process failed with {process.returncode}:\n{wrong[-2000:]}")
        compiled, found = map(int, said.split())
        counts.append((compiled, found))
    return counts, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--model", default="small", choices=("small", "bert", "resnet50", "gpt2"))
    given = parser.parse_args()
    package = Path(lampwork.__file__).parents[1]
    with tempfile.TemporaryDirectory() as made:
        folder, cache = Path(made), Path(made) / "cache"
        waiting = [start(given.model, cache, package, folder, seed) for seed in range(given.processes)]
        counts, took = finish(waiting)
        programs = max(sum(each) for each in counts)
        compiled, found = (sum(each[i] for each in counts) for i in (0, 1))
        print(
            f"{given.processes} processes, {programs} programs each: {compiled} compiled, {found} found, {took:.1f} s"
        )
        for number in range(3):
            where = folder / f"home {number}"
            shutil.copytree(package / "lampwork", where / "lib" / "lampwork")
            counts, _ = finish([start(given.model, cache, where / "lib", where, number + 100)])
            compiled, found = counts[0]
            print(f"from another folder: {compiled} compiled, {found} of {programs} found")


if __name__ == "__main__":
    main()
