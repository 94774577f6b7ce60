"""Every example runs in a process of its own, as a reader would run it, with nothing left to eager."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
ELSEWHERE = {"server.py"}
"""It serves until it is stopped: tests/unit/deploy/test_server.py."""
ARGUMENTS = {
    "demo.py": ["--quick", "--no-peers", "--threads", "1"],
    "bert_byoc.py": ["--layers", "2", "--tokens", "16", "--seconds", "0"],
    "train_distributed.py": ["--steps", "20"],
    "tensor_parallel.py": ["--steps", "5"],
}
LAUNCHERS = {
    "train_distributed.py": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "tensor_parallel.py": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}
PRINTS = {
    "quick_start.py": ["largest difference from eager", "'eager_calls': 0"],
    "byo_backend.py": ["same as eager: True", "numpy did not take softmax: not in the table"],
    "look_inside.py": [
        "==== bytecode ====",
        "==== kernels ====",
        "scratch softmax_exp",
        "==== assembly ====",
        "1 kernel calls",
        "softmax: 1 region, 0 graph breaks",
    ],
    "bert_byoc.py": [
        "aten::addmm",
        "trace.json",
        "attention.onnx",
        "one_projection   rewrite",
        "BertModel#0: it fired 2 times",
        "matmul-scale: 4 operators",
        "first run: 4 parts compiled",
        "second run: 0 parts compiled",
        "layer-norm-to-affine",
        "with the C backend",
    ],
    "train.py": ["100% right", "'eager_calls': 0", "'eager_backwards': 1"],
    "train_distributed.py": ["2 processes", "'eager_calls': 0", "'eager_backwards': 1"],
    "tensor_parallel.py": ["2 processes", "'breaks': 0, 'eager_calls': 0", "'eager_backwards': 1"],
    "demo.py": ["MLP", "AlexNet", "speed-up", "'eager_calls': 0"],
}


@pytest.mark.every_case
@pytest.mark.parametrize("example", sorted(p.name for p in EXAMPLES.glob("*.py") if p.name not in ELSEWHERE))
def test_example_runs(example: str) -> None:
    command = [sys.executable, *LAUNCHERS.get(example, []), EXAMPLES / example, *ARGUMENTS.get(example, [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "runs eager" not in done.stderr
    for wanted in PRINTS[example]:
        assert wanted in done.stdout, f"{wanted!r} is not in\n{done.stdout}"
    assert "WRONG" not in done.stdout
