"""A hundred architectures of `transformers`, tiny and with random weights, against eager."""

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

# Places that need data (a mask's any(), nonzero()) and end a graph: their lines in the model's file. torch.compile ends
# graphs at these too, and at calls of loggers. All others are one region.
BREAKS = {"longformer": 1, "led": 1, "switch_transformers": 3}

# Without a mask it makes one only `if not is_torchdynamo_compiling()`, and fails where that is true.
NEEDS_MASK = {"switch_transformers"}


def check(architecture: Architecture, model: nn.Module, got: Any, inputs: dict[str, Any]) -> None:
    if architecture.single:
        torch.testing.assert_close(flatten(got), flatten(model(**inputs)))
    else:
        assert_same(model, got, **inputs)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_forward(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = build(architecture)
    compiled = lampwork.compile(model)
    calls = [inputs_of(architecture), inputs_of(architecture)]
    if "mask" in architecture.inputs.values() and name not in NEEDS_MASK:
        calls.append(inputs_of(architecture, without=("mask",)))
    with torch.no_grad():
        model(**inputs_of(architecture))  # the library installs hooks of its own at the first call
        lampwork.reset_stats()
        for inputs in calls:
            check(architecture, model, compiled(**copy.deepcopy(inputs)), inputs)
    stats = lampwork.stats()
    assert stats["eager_calls"] == 0, stats
    if name not in BREAKS:
        assert stats["compiled_calls"] == len(calls), stats
        assert stats["breaks"] == 0, stats


@pytest.mark.parametrize("name", BREAKS)
def test_places_of_breaks(name: str) -> None:
    architecture = ARCHITECTURES[name]
    model = build(architecture)
    with torch.no_grad():
        model(**inputs_of(architecture))
        explained = lampwork.explain(model)(**inputs_of(architecture))
    places = {(record.file, record.line) for record in explained.breaks}
    assert len(places) == BREAKS[name], explained


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
