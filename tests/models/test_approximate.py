"""lampwork.approximate and lampwork.swap on models of transformers with random weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from same import flatten
from torch import Tensor, nn

import lampwork
from lampwork.approximation import (
    ChannelAffine,
    HalfLinear,
    LowRankLinear,
    bf16_weights,
    low_rank,
    top1_disagreement,
)

transformers = pytest.importorskip("transformers")

RULES = ["gelu-to-relu", "layer-norm-to-affine", low_rank(0.98), bf16_weights("bfloat16")]


def bert() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    config = transformers.BertConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=96,
        vocab_size=60,
        num_labels=5,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():  # one layer with a weight that is nearly of rank 3
        model.bert.encoder.layer[0].output.dense.weight.copy_(torch.randn(48, 3) @ torch.randn(3, 96) / 30)
    return model, [{"input_ids": torch.randint(0, 60, (4, 11))} for _ in range(2)]


def vit() -> tuple[nn.Module, list[Tensor]]:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        num_labels=7,
    )
    return transformers.ViTForImageClassification(config).eval(), [
        torch.randn(2, 3, 32, 32) for _ in range(2)
    ]


def call(fn: Any, inputs: Any) -> list[Tensor]:
    with torch.no_grad():
        return flatten(fn(**inputs) if isinstance(inputs, dict) else fn(inputs))


@pytest.mark.parametrize("make", [bert, vit])
def test_generous_budget_keeps_all(make: Any) -> None:
    model, batches = make()
    before = [call(model, batch)[0] for batch in batches]
    weights = dict(model.state_dict())
    report = lampwork.approximate(model, RULES, calibration=batches, budget=100.0, measure_speed=False)
    kinds = {type(module) for module in model.modules()}
    assert nn.LayerNorm not in kinds and nn.Linear not in kinds
    assert {ChannelAffine, HalfLinear, nn.ReLU} <= kinds and (LowRankLinear in kinds) is (make is bert)
    assert all(rule.refused == () for rule in report.rules if rule.rule != "low-rank")
    assert [rule.error for rule in report.rules] == sorted(
        rule.error for rule in report.rules
    ) or report.error > 0
    compiled = lampwork.compile(model, fullgraph=True)
    lampwork.reset_stats()
    for batch in batches:
        for ours, eager in zip(call(compiled, batch), call(model, batch), strict=True):
            torch.testing.assert_close(ours, eager, atol=2e-2, rtol=2e-2)  # bfloat16 rounds in other places
    assert lampwork.stats()["eager_calls"] == 0
    report.undo()
    assert all(torch.equal(call(model, b)[0], was) for b, was in zip(batches, before, strict=True))
    assert all(model.state_dict()[name] is not None for name in weights) and len(model.state_dict()) == len(
        weights
    )


@pytest.mark.parametrize("make", [bert, vit])
def test_budget_holds_on_the_calibration_inputs(make: Any) -> None:
    model, batches = make()
    before = [call(model, batch)[0] for batch in batches]
    report = lampwork.approximate(model, RULES, calibration=batches, budget=0.1, measure_speed=False)
    moved = max(
        float((call(model, batch)[0] - was).abs().max() / was.abs().max())
        for batch, was in zip(batches, before, strict=True)
    )
    assert moved == pytest.approx(report.error) and report.error <= 0.1
    assert any(rule.kept for rule in report.rules) and any(rule.refused for rule in report.rules)


def test_top1() -> None:
    model, batches = vit()
    before = [call(model, batch)[0].argmax(-1) for batch in batches]
    report = lampwork.approximate(
        model, RULES, calibration=batches, metric=top1_disagreement, budget=0.0, measure_speed=False
    )
    assert report.error == 0.0
    assert all(torch.equal(call(model, b)[0].argmax(-1), was) for b, was in zip(batches, before, strict=True))


def test_fine_tuning_recovers() -> None:
    """Layer norms become scales and shifts, GELUs ReLUs; some steps towards the old outputs bring the error down."""
    model, batches = bert()
    targets = [call(model, batch)[0] for batch in batches]
    report = lampwork.approximate(
        model,
        ["gelu-to-relu", "layer-norm-to-affine"],
        calibration=batches,
        budget=100.0,
        measure_speed=False,
    )
    names = dict(model.named_parameters())
    assert names["bert.embeddings.LayerNorm.weight"].requires_grad
    model.eval()  # without dropout the error is comparable
    compiled = lampwork.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses: list[float] = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = torch.stack(
            [
                (compiled(**batch).logits - target).square().mean()
                for batch, target in zip(batches, targets, strict=True)
            ]
        ).sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0], losses
    assert report.error > 0
    copy, _ = bert()
    lampwork.approximate(
        copy, ["gelu-to-relu", "layer-norm-to-affine"], calibration=batches, budget=100.0, measure_speed=False
    )
    copy.load_state_dict(model.state_dict())
    assert torch.equal(call(copy, batches[0])[0], call(model, batches[0])[0])
