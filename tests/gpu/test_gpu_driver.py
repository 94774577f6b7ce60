"""A broken CUDA installation does not matter to the CPU. These run on any machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

PROGRAM = """
import torch, lampwork
compiled = lampwork.compile(lambda x: (x * 2 + 1).softmax(-1))
x = torch.randn(5, 33)
torch.testing.assert_close(compiled(x), (x * 2 + 1).softmax(-1))
assert lampwork.stats()["compiled_calls"] == 1, lampwork.stats()
print("right on the CPU")
"""

ON_THE_CARD = """
import torch, lampwork
def fn(x): return (x * 2 + 1).softmax(-1)
x = torch.randn(5, 33, device="cuda")
try:
    got = lampwork.compile(fn, options={"strict": False})(x)
    torch.testing.assert_close(got, fn(x))
    print("eager")
except lampwork.LampworkError as error:
    print("error", error)
"""


def run(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("path", ["/nonexistent", sys.executable], ids=["no file", "no library"])
def test_cpu_compiles_without_a_driver(path: str) -> None:
    assert "right on the CPU" in run(PROGRAM, LAMPWORK_CUDA_DRIVER=path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_without_a_driver_is_eager_s_or_an_error() -> None:
    """torch has found a driver, and Lampwork does not."""
    said = run(ON_THE_CARD, LAMPWORK_CUDA_DRIVER="/nonexistent")
    assert said.startswith(("eager", "error")), said
    if said.startswith("error"):
        assert "/nonexistent" in said
