"""The first call under one mode, the second under another, with each set of options: as eager, and the module stays as
trainable as it was."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lampwork
from lampwork.runtime import packed_weights

MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "packed": {"options": {"weights": "packed"}},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "eager backend": {"backend": "eager"},
}
ORDERS = list(itertools.product(MODES, MODES))


class Counting(nn.Module):
    """Weights that are packed, a buffer that is written, a constant that is computed of weights, a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Linear(160, 160), nn.GELU(), nn.Linear(160, 160), nn.RMSNorm(160))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        scale = self.wide[0].weight.mean() * torch.tensor([0.5])
        return self.wide(x) * scale + self.calls


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPWORK_CACHE", str(tmp_path))
    monkeypatch.setattr(packed_weights, "_IN_MEMORY", frozenset())


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return call(), ""
    except RuntimeError as error:
        return None, str(error)


def alike(found: torch.Tensor, want: torch.Tensor) -> None:
    """As a caller can tell; half types round in another order."""
    for what in ("dtype", "requires_grad"):
        assert getattr(found, what) == getattr(want, what)
    assert found.stride() == want.stride() and found.is_inference() == want.is_inference()
    loose = 4e-2 if torch.bfloat16 in (found.dtype, want.dtype) or torch.is_autocast_enabled("cpu") else 2e-5
    torch.testing.assert_close(found, want, rtol=loose, atol=loose)


@pytest.mark.parametrize("options", OPTIONS)
def test_two_calls(options: str) -> None:
    torch.manual_seed(0)
    model, x = Counting(), torch.randn(24, 160)
    for first, second in ORDERS:
        eager, ours = copy.deepcopy(model), copy.deepcopy(model)
        fast = lampwork.compile(ours, **OPTIONS[options])
        for name in (first, second):
            with MODES[name]():
                alike(fast(x), eager(x))
        for tensor in (*ours.parameters(), *ours.buffers()):
            assert not tensor.is_inference() and not tensor.data.is_inference(), (first, second)
        for each in (fast, eager):
            each(x).square().sum().backward()
        for mine, theirs in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("width", [8, 160])
def test_weights_that_are_inference_tensors(options: str, width: int) -> None:
    """Eager refuses to save them in forward, where a gradient is asked for."""
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
    x = torch.randn(4, width)
    for first, second in ORDERS:
        fast = lampwork.compile(model, **OPTIONS[options])
        for name in (first, second):
            with MODES[name]():
                (found, refusal), (want, expected) = outcome(lambda: fast(x)), outcome(lambda: model(x))
            assert refusal == expected, (first, second)
            if want is not None:
                with MODES[name]():
                    alike(found, want)
