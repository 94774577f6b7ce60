"""Swaps in what is compiled already: the next call sees them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lampwork


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Sequential(nn.Linear(8, 8), nn.GELU())).eval()


def test_next_call_sees_swap_and_undo() -> None:
    model, x = build(), torch.randn(3, 8)
    compiled = lampwork.compile(model)
    lampwork.reset_stats()
    with torch.no_grad():
        first = compiled(x)
        report = lampwork.swap(compiled, {nn.GELU: nn.ReLU()}, check=x)
        assert report.model is compiled and [c.name for c in report.changes] == ["1", "2.1"]
        torch.testing.assert_close(compiled(x), model(x))
        assert not torch.allclose(compiled(x), first)
        report.undo()
        assert torch.equal(compiled(x), first)
    stats = lampwork.stats()
    assert stats["eager_calls"] == 0 and stats["compiled_calls"] == 4, stats
    assert len(compiled.entries) == 2  # after undo the first version serves again


def test_swap_in_a_model_with_a_compiled_part() -> None:
    model, x = build(), torch.randn(3, 8)
    model[2] = lampwork.compile(model[2])
    with torch.no_grad():
        model(x)
        lampwork.swap(model, {nn.GELU: nn.ReLU()})
        want = torch.relu(model[2][0](torch.relu(model[0](x))))
        torch.testing.assert_close(model(x), want)
        lampwork.swap(model, {"2": nn.Identity()})
        torch.testing.assert_close(model(x), torch.relu(model[0](x)))


def test_predicates_see_through_compiled_parts() -> None:
    model = build()
    model[1] = lampwork.compile(model[1])
    report = lampwork.swap(model, {lambda name, module: type(module) is nn.GELU: nn.ReLU()})
    assert [change.name for change in report.changes] == ["1", "2.1"]
    assert "1: GELU -> ReLU" in str(report)


def test_functions_and_shared_modules_compile() -> None:
    model, x = build(), torch.randn(3, 8)
    lampwork.swap(model, {nn.GELU: torch.tanh})
    compiled = lampwork.compile(model, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_bert() -> None:
    transformers = pytest.importorskip("transformers")
    activations = pytest.importorskip("transformers.activations")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50
    )
    model = transformers.BertModel(config).eval()
    inputs = {"input_ids": torch.randint(0, 50, (2, 7)), "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    compiled = lampwork.compile(model)
    with torch.no_grad():
        before = compiled(**inputs).last_hidden_state
        report = lampwork.swap(
            compiled,
            {
                activations.GELUActivation: nn.ReLU(inplace=True),
                "encoder.layer.*.attention.output.dropout": None,
            },
            check=inputs,
        )
        after = compiled(**inputs)
        torch.testing.assert_close(after.last_hidden_state, model(**inputs).last_hidden_state)
        assert len(report.changes) == 4
        by_name = {d.output: d.max_abs for d in report.differences}
        moved = float((after.last_hidden_state - before).abs().max())
        assert by_name["last_hidden_state"] == pytest.approx(moved, rel=1e-3, abs=1e-5)
        report.undo()
        assert torch.equal(compiled(**inputs).last_hidden_state, before)
    with pytest.raises(lampwork.LampworkError, match=r"transformers\.activations\.GELUActivation"):
        lampwork.swap(model, {nn.GELU: nn.ReLU()})
