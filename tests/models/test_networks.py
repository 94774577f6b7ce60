"""Real networks, small, through the front door."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers
from instruction_sets import INSTRUCTION_SETS
from same import assert_same
from torch import nn

import lampwork
from lampwork.bench import models
from lampwork.bench.networks import AlexNet, MobileNetV2, ResNet
from lampwork.bench.workloads.workload import keep_alive


def tiny(name: str):
    common = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
    ids = torch.randint(0, 99, (2, 7))
    image = torch.randn(2, 3, 32, 32)
    if name == "bert":
        return transformers.BertModel(transformers.BertConfig(vocab_size=99, **common)), (ids,)
    if name == "gpt2":
        config = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)
        return transformers.GPT2LMHeadModel(config), (ids,)
    if name == "llama":
        config = transformers.LlamaConfig(vocab_size=99, num_key_value_heads=2, **common)
        return transformers.LlamaForCausalLM(config), (ids,)
    if name == "vit":
        return transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **common)), (image,)
    if name == "resnet":
        return keep_alive(ResNet((1, 1, 1, 1), classes=10)), (image,)
    if name == "mobilenet":
        return keep_alive(MobileNetV2(classes=10)), (image,)
    if name == "alexnet":
        return keep_alive(AlexNet(classes=10)), (torch.randn(2, 3, 224, 224),)
    if name == "lstm":
        return nn.LSTM(8, 16, num_layers=2, batch_first=True), (torch.randn(2, 5, 8),)
    if name == "encoder":
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 6, 32),)
    raise KeyError(name)


NETWORKS = ("bert", "gpt2", "llama", "vit", "resnet", "mobilenet", "alexnet", "lstm", "encoder")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("grad", ["no_grad", "inference_mode", "grad"])
def test_network_is_right_and_compiled(name, grad):
    model, inputs = tiny(name)
    model.eval()
    compiled = lampwork.compile(model)
    lampwork.reset_stats()
    mode = {
        "no_grad": torch.no_grad(),
        "inference_mode": torch.inference_mode(),
        "grad": torch.enable_grad(),
    }[grad]
    with mode:
        for _ in range(2):
            got = compiled(*inputs)
            assert_same(model, got, *inputs)
    stats = lampwork.stats()
    assert stats["compiled_calls"] == 2, stats
    assert stats["eager_calls"] == stats["partial_calls"] == stats["breaks"] == 0, stats


def test_workload():
    workload = models.load("lstm")
    with torch.no_grad():
        compiled = lampwork.compile(workload.fn)
        for _ in range(2):
            got = compiled(*workload.inputs)
            assert_same(workload.fn, got, *workload.inputs)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_every_instruction_set(isa, monkeypatch):
    monkeypatch.setenv("LAMPWORK_ISA", isa)
    model, inputs = tiny("bert")
    model.eval()
    with torch.no_grad():
        assert_same(model, lampwork.compile(model)(*inputs), *inputs)


def test_attention_mask_and_keywords():
    model, (ids,) = tiny("bert")
    model.eval()
    mask = torch.ones_like(ids)
    mask[0, 4:] = 0
    compiled = lampwork.compile(model)
    with torch.no_grad():
        assert_same(model, compiled(ids, attention_mask=mask), ids, attention_mask=mask)
        assert_same(model, compiled(input_ids=ids), input_ids=ids)


def test_train_mode_batch_norm_updates_its_buffers():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
    twin = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
    twin.load_state_dict(model.state_dict())
    compiled = lampwork.compile(model)
    for _ in range(3):
        x = torch.randn(8, 4)
        torch.testing.assert_close(compiled(x), twin(x))
        for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_dropout_draws_the_same_numbers_as_eager():
    drop = nn.Dropout(0.5)
    compiled = lampwork.compile(drop)
    x = torch.randn(64)
    torch.manual_seed(3)
    want = drop(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), want)


def test_function_with_several_dtypes():
    def f(x, i):
        return F.one_hot(i, 5).to(x.dtype) @ x, (x > 0).sum(), x.to(torch.bfloat16) * 2

    x, i = torch.randn(5, 3), torch.tensor([0, 4, 2])
    got = lampwork.compile(f)(x, i)
    for ours, theirs in zip(got, f(x, i), strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs)
