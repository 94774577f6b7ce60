"""Real models are captured whole: one region, no break, eager's outputs in eager's containers."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
from capture_reference import Reference, check, same

transformers = pytest.importorskip("transformers")

IDS = torch.arange(2, 18).reshape(1, 16)
IMAGE = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
TEXT = dict(
    vocab_size=99,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
VISION = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
)


def build(name, **config):
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **config))
    return model.eval()


MODELS = {
    "bert": (lambda: build("bert", **TEXT), IDS, {}),
    "gpt2": (
        lambda: build("gpt2", vocab_size=99, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
        IDS,
        {},
    ),
    "llama": (lambda: build("llama", **TEXT, num_key_value_heads=2), IDS, {}),
    "vit": (lambda: build("vit", **VISION), IMAGE, {}),
    "resnet": (lambda: build("resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]), IMAGE, {}),
    "t5": (
        lambda: build("t5", vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4),
        IDS,
        {"decoder_input_ids": IDS},
    ),
    "bloom": (lambda: build("bloom", vocab_size=99, hidden_size=32, n_layer=1, n_head=4), IDS, {}),
    "swin": (
        lambda: build(
            "swin", image_size=32, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
        ),
        IMAGE,
        {},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_whole_model(name):
    make, x, kwargs = MODELS[name]
    model = make()
    reference = Reference(model)
    with torch.no_grad():
        expected = model(x, **kwargs)
        for _ in range(2):
            actual = reference(x, **kwargs)
            same(actual, expected)
    assert len(reference.regions) == 1
    assert not reference.records and not reference.refusals


def test_mask_outputs_and_other_lengths():
    model = build("bert", **TEXT)
    reference = Reference(model)
    mask = torch.ones(1, 16, dtype=torch.long)
    mask[:, 12:] = 0
    with torch.no_grad():
        for kwargs in ({}, {"attention_mask": mask}, {"output_hidden_states": True}, {"return_dict": False}):
            same(reference(IDS, **kwargs), model(IDS, **kwargs))
        same(reference(IDS[:, :7]), model(IDS[:, :7]))
    assert not reference.refusals


def test_loss_and_training_mode():
    torch.manual_seed(0)
    config = transformers.BertConfig(**TEXT, num_labels=3)
    model = transformers.BertForSequenceClassification(config).train()
    reference = Reference(model)
    labels = torch.tensor([1])
    for _ in range(2):
        torch.manual_seed(7)
        expected = model(IDS, labels=labels)
        torch.manual_seed(7)
        actual = reference(IDS, labels=labels)
        torch.testing.assert_close(actual.loss.detach(), expected.loss.detach())
        assert actual.logits.shape == expected.logits.shape
    assert len(reference.regions) == 1 and not reference.records


def test_cache_goes_in_and_out():
    torch.manual_seed(0)
    model = build("llama", **TEXT, num_key_value_heads=2)
    reference = Reference(model)
    with torch.no_grad():
        ours, theirs = reference(IDS), model(IDS)
        for step in range(2):
            token = IDS[:, step : step + 1]
            ours = reference(token, past_key_values=ours.past_key_values)
            theirs = model(token, past_key_values=theirs.past_key_values)
            torch.testing.assert_close(ours.last_hidden_state, theirs.last_hidden_state)
    assert not reference.refusals


def test_plain_torch_networks():
    class AlexNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(3, 8, 5, 2, 2),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(3, 2),
                nn.Conv2d(8, 8, 3, padding=1),
            )
            self.pool = nn.AdaptiveAvgPool2d((2, 2))
            self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(32, 10))

        def forward(self, x):
            return self.classifier(torch.flatten(self.pool(self.features(x)), 1))

    check(AlexNet().eval(), (IMAGE,), regions=1, breaks=[])
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    with torch.no_grad():
        check(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), (torch.randn(2, 5, 16),))
    check(nn.MultiheadAttention(16, 4, batch_first=True), (torch.randn(2, 5, 16),) * 3, regions=1, breaks=[])


def test_capture_imports_no_heavy_machinery():
    import subprocess
    import sys

    code = """
import sys, torch
from torch import nn
before = set(sys.modules)
from lampwork.capture import capture
net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)).eval()
capture(net, (torch.randn(1, 1, 8, 8),), {})
heavy = {"sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes"}
print(sorted(heavy & (set(sys.modules) - before)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
