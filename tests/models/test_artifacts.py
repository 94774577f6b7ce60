"""Networks of transformers as artifacts: what is loaded computes as they do, for other sizes too."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)

import lampwork


def compare(found, expected):
    assert repr(found).startswith(type(expected).__name__) and found.keys() == list(expected.keys())
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-4)
        assert found[name] is getattr(found, name)


@torch.no_grad()
def test_bert_of_any_length(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    model = BertModel(config).eval()
    ids = torch.randint(0, 50, (2, 8))
    length = Dim("length", min=2, max=32)
    lampwork.export(
        model,
        (ids,),
        {"attention_mask": torch.ones_like(ids)},
        dynamic_shapes={"input_ids": {1: length}, "attention_mask": {1: length}},
        path=tmp_path / "m.lamp",
        targets="host",
    )
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    for count in (2, 9, 32):
        ids = torch.randint(0, 50, (2, count))
        mask = torch.ones_like(ids)
        mask[1, count // 2 :] = 0
        compare(loaded(ids, attention_mask=mask), model(ids, attention_mask=mask))
        compare(loaded(input_ids=ids, attention_mask=mask), model(ids, attention_mask=mask))
    assert list(loaded.state_dict()) == list(model.state_dict())
    with pytest.raises(lampwork.LampworkError, match="dimension 1 of input_ids: expected 2 to 32, came 33"):
        loaded(torch.ones(2, 33, dtype=torch.long), attention_mask=torch.ones(2, 33, dtype=torch.long))


@torch.no_grad()
def test_gpt2(tmp_path):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2)).eval()
    ids = torch.randint(0, 50, (1, 6))
    lampwork.export(model, (ids,), {"use_cache": False}, path=tmp_path / "m.lamp", targets="host")
    loaded = lampwork.load(tmp_path / "m.lamp", trust=True)
    compare(loaded(ids, use_cache=False), model(ids, use_cache=False))
    assert loaded.lm_head.weight is loaded.transformer.wte.weight


@torch.no_grad()
def test_a_network_of_convolutions(tmp_path):
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=5)
    model = ResNetForImageClassification(config).eval()
    x = torch.randn(1, 3, 32, 32)
    lampwork.export(model, (x,), path=tmp_path / "m.lamp", targets="host")
    compare(lampwork.load(tmp_path / "m.lamp", trust=True)(x), model(x))
