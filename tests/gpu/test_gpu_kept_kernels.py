"""Cubins that one process leaves for the next: found, not found, damaged, off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpu

gpu.require()

pytestmark = pytest.mark.skipif(not gpu.ON_GPU, reason="no CUDA device")

PROGRAM = """
import json, time
import torch
import lampwork
from lampwork.cache import Store
from lampwork.codegen.gpu import generator

counts = {"found": 0, "kept": 0, "seconds": 0.0}
get, put, load = Store.get, Store.put, generator.load_kept

def watched_get(self, key):
    got = get(self, key)
    counts["found"] += key.kind == "cubin" and got is not None
    return got

def watched_put(self, key, content):
    if key.kind == "cubin":
        counts["kept"] += 1
        assert content.startswith(b"\\x7fELF"), content[:8]
    put(self, key, content)

def watched_load(kernel, ptx, device):
    start = time.perf_counter()
    load(kernel, ptx, device)
    counts["seconds"] += time.perf_counter() - start

Store.get, Store.put, generator.load_kept = watched_get, watched_put, watched_load
torch.manual_seed(0)
x = torch.randn(300, 500, device="cuda", requires_grad=True)
fn = lambda x: (torch.nn.functional.layer_norm(x, (500,)).tanh().softmax(-1) * x).sum()
got = lampwork.compile(fn)(x)
got.backward()
grad = x.grad.clone()
x.grad = None
want = fn(x)
want.backward()
torch.testing.assert_close(got, want)
torch.testing.assert_close(grad, x.grad)
print(json.dumps(counts | {"grad": grad.double().sum().item(), "loss": got.item()}))
"""


def process(cache: str, driver: Path) -> dict[str, Any]:
    """What a fresh process finds, keeps and computes. The driver's own cache is empty."""
    environ = {
        **os.environ,
        "LAMPWORK_CACHE": cache,
        "CUDA_CACHE_PATH": str(driver),
        "CUDA_CACHE_DISABLE": "1",
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_next_process_finds_what_one_kept(tmp_path: Path) -> None:
    cache, driver = tmp_path / "cache", tmp_path / "driver"
    first = process(str(cache), driver)
    files = [path for path in sorted(cache.glob("objects/??/*")) if b'["cubin"' in path.read_bytes()[:100]]
    assert first["found"] == 0 and first["kept"] == len(files) > 0
    second = process(str(cache), driver)
    assert second["found"] == first["kept"] and second["kept"] == 0
    files[0].write_bytes(files[0].read_bytes()[:-9])
    third = process(str(cache), driver)
    assert third["found"] == first["kept"] - 1 and third["kept"] == 1
    off = process("off", driver)
    assert off["found"] == off["kept"] == 0
    # The same code, whichever way it was loaded.
    assert first["loss"] == second["loss"] == third["loss"] == off["loss"]
    assert first["grad"] == second["grad"] == third["grad"] == off["grad"]
    kernels = first["kept"]
    print(
        f"{kernels} kernels: assembled and kept in {first['seconds'] * 1e3:.1f} ms, found in "
        f"{second['seconds'] * 1e3:.1f} ms, as PTX in {off['seconds'] * 1e3:.1f} ms (sums of threads)"
    )
