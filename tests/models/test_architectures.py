"""Ninety architectures of `transformers`, tiny and with random weights, against eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from same import assert_same, flatten
from torch import nn

import lampwork
from lampwork.bench.architectures import ARCHITECTURES, Architecture, build, inputs_of

pytest.importorskip("transformers")

# Where torch.compile breaks: how often. All others are one region. Lampwork breaks no more often.
BREAKS = {"deberta": 5, "longformer": 4, "led": 5, "switch_transformers": 13}
# A break in a loop over layers leaves the loop to eager, which strict mode would not allow.
PARTLY = frozenset({"deberta", "longformer", "led", "switch_transformers", "mamba", "falcon_mamba", "jamba"})


def check(architecture: Architecture, model: nn.Module, got: Any, inputs: dict[str, Any]) -> None:
    if architecture.single:
        torch.testing.assert_close(flatten(got), flatten(model(**inputs)))
    else:
        assert_same(model, got, **inputs)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_forward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in PARTLY:
        monkeypatch.setenv("LAMPWORK_STRICT", "0")
    architecture = ARCHITECTURES[name]
    model = build(architecture)
    compiled = lampwork.compile(model)
    calls = [inputs_of(architecture), inputs_of(architecture)]
    if architecture.takes_mask:
        calls.append(inputs_of(architecture, masked=False))
    with torch.no_grad():
        model(**inputs_of(architecture))  # the library installs hooks of its own at the first call
        lampwork.reset()
        for inputs in calls:
            check(architecture, model, compiled(**copy.deepcopy(inputs)), inputs)
    stats = lampwork.stats()
    if name in PARTLY:
        assert stats["breaks"] <= BREAKS.get(name, 0) * (1 + architecture.takes_mask), stats
    else:
        assert stats["compiled_calls"] == len(calls), stats
        assert stats["breaks"] == 0, stats


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "convnext"])
def test_training_step(name: str) -> None:
    """Dropout draws eager's numbers, and gradients and running statistics are eager's."""
    architecture = ARCHITECTURES[name]
    model, twin = build(architecture).train(), build(architecture).train()
    compiled = lampwork.compile(model)
    inputs = inputs_of(architecture)
    for _ in range(2):
        losses: list[torch.Tensor] = []
        for run in (compiled, twin):
            torch.manual_seed(3)
            results = [t for t in flatten(run(**copy.deepcopy(inputs))) if t.requires_grad]
            losses.append(torch.stack([t.sin().mean() for t in results]).sum())
            losses[-1].backward()
        torch.testing.assert_close(*losses)
    for (key, ours), (_, theirs) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), key
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
