"""mode="max-autotune" on a card: every variant of every source gives what the call of ATen gives, winners are kept, and
the next process measures nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gpu
import lampwork
from lampwork.backends.native.tuning import race, tune_card
from lampwork.backends.native.tuning.stopwatch import CudaStopwatch, measure_on
from lampwork.cache import store
from lampwork.codegen.gpu import sources

gpu.require()
if not gpu.ON_GPU:
    pytest.skip("what is tuned are kernels of cards", allow_module_level=True)

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path))
    race.forget()
    lampwork.reset_stats()
    yield
    race.forget()


def made(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device=gpu.DEVICE).to(dtype)


def linear(act: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, w, b: act(F.linear(x, w, b))


Case = tuple[Callable[..., torch.Tensor], Callable[[torch.dtype], tuple[torch.Tensor, ...]]]

CASES: dict[str, Case] = {
    "mm": (torch.mm, lambda d: (made(256, 512, dtype=d), made(512, 384, dtype=d))),
    "odd mm": (torch.mm, lambda d: (made(333, 77, dtype=d), made(77, 129, dtype=d))),
    "transposed": (
        lambda a, b: a.t() @ b.t(),
        lambda d: (made(256, 200, dtype=d), made(136, 256, dtype=d)),
    ),
    "one row": (torch.mm, lambda d: (made(1, 1024, dtype=d), made(1024, 1000, dtype=d))),
    "five rows": (F.linear, lambda d: (made(5, 1024, dtype=d), made(640, 1024, dtype=d))),
    "linear, gelu": (
        linear(F.gelu),
        lambda d: (made(8, 100, 256, dtype=d), made(520, 256, dtype=d), made(520, dtype=d)),
    ),
    "linear, tanh gelu": (
        linear(lambda y: F.gelu(y, approximate="tanh")),
        lambda d: (made(96, 256, dtype=d), made(512, 256, dtype=d), made(512, dtype=d)),
    ),
    "relu and residual": (
        lambda x, w, b, r: torch.relu(F.linear(x, w, b)) + r,
        lambda d: (made(70, 64, dtype=d), made(200, 64, dtype=d), made(200, dtype=d), made(70, 200, dtype=d)),
    ),
    "bmm, silu": (
        lambda a, b: F.silu(a @ b),
        lambda d: (made(6, 65, 80, dtype=d), made(6, 80, 72, dtype=d)),
    ),
    "heads": (
        lambda q, k: (q @ k.transpose(-2, -1)) * 0.125,
        lambda d: (made(2, 3, 64, 64, dtype=d), made(2, 3, 96, 64, dtype=d)),
    ),
    "baddbmm": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2),
        lambda d: (made(3, 40, 56, dtype=d), made(3, 40, 64, dtype=d), made(3, 64, 56, dtype=d)),
    ),
    "masked": (
        lambda a, b: torch.tril(a @ b) * 2,
        lambda d: (made(130, 64, dtype=d), made(64, 130, dtype=d)),
    ),
}


def winning(monkeypatch: pytest.MonkeyPatch, number: int) -> list[list[str]]:
    """Have the candidate of this number win; the list receives those of each race."""
    seen: list[list[str]] = []

    def fake(watch: Any, runs: Any, kept: str) -> dict[str, float]:
        names = list(runs)
        seen.append(names)
        best = names[number % len(names)]
        return {name: 0.5 if name == best else 1.0 if name == kept else 2.0 for name in names}

    monkeypatch.setattr(tune_card, "measure_on", fake)
    return seen


def tuned(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lampwork.compile(fn, mode="max-autotune-no-cudagraphs", options=options)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=["bf16", "f16", "f32"])
@pytest.mark.parametrize("name", CASES)
def test_every_variant_is_right(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    fn, make = CASES[name]
    args = make(dtype)
    asked: list[str] = []
    out: list[str] = []

    def variants(*given: Any) -> list[str]:
        found = sources.product_variants(*given)
        asked.extend(found)
        return found

    monkeypatch.setattr(tune_card, "product_variants", variants)
    monkeypatch.setattr(tune_card, "_left_out", lambda title, name, reason: out.append(f"{name}: {reason}"))
    seen = winning(monkeypatch, 1)
    compiled = tuned(fn)
    with torch.no_grad():
        got = compiled(*args)
    if not asked:
        pytest.skip("no source has a kernel")
    assert not out, out
    assert set(seen[0]) == {"", *asked}
    chosen = seen[0][1]
    assert f"{chosen}, 2.00 times as fast" in compiled.stages.tuning
    gpu.assert_near(fn, got, args)
    # Operands that begin anywhere.
    moved = tuple(torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) for x in args)
    with torch.no_grad():
        gpu.assert_near(fn, compiled(*moved), moved)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "f32"])
def test_sizes_that_stay_open(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    winning(monkeypatch, 1)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU()).to(gpu.DEVICE, dtype).eval()
    compiled = lampwork.compile(model, mode="max-autotune-no-cudagraphs", dynamic=True)
    with torch.no_grad():
        for rows in (48, 1, 7, 64, 300):
            x = made(rows, 256, dtype=dtype)
            gpu.assert_near(model, compiled(x), (x,))


KERNELS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "pointwise": (lambda x: torch.sin(x) * 2, lambda: (made(1000, 1024, dtype=F32),)),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (made(3000, 1000, dtype=BF16),)),
    "layer norm": (lambda x: F.layer_norm(x, (768,)), lambda: (made(4096, 768, dtype=BF16),)),
    "sum of columns": (lambda x: x.sum(0), lambda: (made(4096, 512, dtype=F32),)),
    "transpose": (lambda x: x.t().contiguous() * 2, lambda: (made(1111, 1024, dtype=F32),)),
    "short rows": (lambda x: torch.softmax(x, -1), lambda: (made(100000, 24, dtype=F32),)),
    "gather": (
        lambda x, i: x[i] * 2,
        lambda: (made(3000, 256, dtype=BF16), torch.randint(3000, (9000,), device=gpu.DEVICE)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_every_grid_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    fn, make = KERNELS[name]
    args, out = make(), list[str]()
    monkeypatch.setattr(tune_card, "_left_out", lambda title, name, reason: out.append(f"{name}: {reason}"))
    seen = winning(monkeypatch, 0)
    tuned(fn, cache="off")(*args)
    assert seen and not out, out
    for number in range(1, len(seen[0])):
        race.forget()
        winning(monkeypatch, number)
        compiled = tuned(fn, cache="off")
        gpu.assert_near(fn, compiled(*args), args)
        assert seen[0][number] in compiled.stages.tuning


def winners() -> list[str]:
    """What the cache has by measurement."""
    kept = store()
    assert kept is not None and kept.local is not None
    return sorted(row.name for row in kept.local.rows("tuning"))


def test_winners_are_kept_and_the_next_call_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512))
    model = model.to(gpu.DEVICE, BF16).eval()
    x = made(1024, 512, dtype=BF16)
    with torch.no_grad():
        compiled = tuned(model)
        gpu.assert_near(model, compiled(x), (x,))
        verdicts = compiled.stages.tuning
        print(verdicts)
        assert "(measured)" in verdicts
        names = winners()
        assert names
        race.forget()
        monkeypatch.setattr(tune_card, "measure_on", lambda *given, **named: pytest.fail("measured"))
        again = tuned(model)
        gpu.assert_near(model, again(x), (x,))
        assert "(kept)" in again.stages.tuning and "(measured)" not in again.stages.tuning
        assert winners() == names


CHILD = """
import torch, lampwork
from torch import nn
from lampwork.backends.native.tuning import tune_card
calls, true = [], tune_card.measure_on
tune_card.measure_on = lambda *given, **named: calls.append(1) or true(*given, **named)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU()).cuda().bfloat16().eval()
x = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
with torch.no_grad():
    compiled = lampwork.compile(model, mode="max-autotune", options={"tuning_seconds": 300})
    torch.testing.assert_close(compiled(x), model(x), atol=3e-2, rtol=3e-2)
print(len(calls), compiled.stages.tuning, sep="\\n")
"""


def test_the_next_process_measures_nothing() -> None:
    for first in (True, False):
        done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
        count, _, verdicts = done.stdout.partition("\n")
        assert (int(count) > 0) == first, verdicts


def test_tf32_is_another_program() -> None:
    a, b = made(512, 512, dtype=F32), made(512, 512, dtype=F32)
    compiled = tuned(torch.mm)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            apart = (compiled(a, b).double() - a.double() @ b.double()).abs().max().item()
            assert apart < (1e-1 if allowed else 1e-3), (allowed, apart)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_with_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    winning(monkeypatch, 1)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU()).to(gpu.DEVICE, BF16).eval()
    compiled = lampwork.compile(model, mode="max-autotune")
    with torch.no_grad():
        for _ in range(4):
            x = made(64, 256, dtype=BF16)
            gpu.assert_near(model, compiled(x), (x,))


def test_the_clock_sees_what_the_device_does() -> None:
    x = made(1 << 24, dtype=F32)
    small = made(1 << 10, dtype=F32)
    taken = measure_on(
        CudaStopwatch(torch.cuda.current_device()),
        {"": lambda: x.mul(2), "half": lambda: x[: 1 << 23].mul(2), "small": lambda: small.mul(2)},
        kept="",
    )
    bandwidth = 2 * x.nbytes / taken[""]
    print(f"{bandwidth / 1e9:.0f} GB/s", {name: f"{seconds * 1e6:.1f} us" for name, seconds in taken.items()})
    assert 2e11 < bandwidth < 1e13
    assert taken["small"] < 0.5 * taken[""]
