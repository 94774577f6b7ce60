"""Networks that write attention, norms and activations out: their graphs hold the fused ops, answers stay eager's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from same import assert_same
from torch import Tensor, nn

import lampwork

transformers: Any = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
handwritten: Any = importlib.import_module("handwritten")

EAGER = {"attn_implementation": "eager"}
TINY = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    **EAGER,
}
GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "use_cache": False, **EAGER}
PICTURE = {"image_size": 32, "patch_size": 8, **TINY}
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, **EAGER}
SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
BLOOM = {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4, "use_cache": False}


class First(nn.Module):
    """The first output only, of positional inputs."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)))[0]


def tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(5, 99, (2, 7))}


def padded() -> dict[str, Tensor]:
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, -2:] = 0
    return {**tokens(), "attention_mask": mask}


def image() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


# name -> (model, config, its fields, inputs, attentions)
NETWORKS: dict[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Tensor]], int]] = {
    "bert": ("BertModel", "BertConfig", TINY, padded, 2),
    "bert without padding": ("BertModel", "BertConfig", TINY, tokens, 2),
    "gpt2": ("GPT2Model", "GPT2Config", GPT, padded, 2),
    "gptj": ("GPTJModel", "GPTJConfig", {**GPT, "rotary_dim": 4}, tokens, 2),
    "gpt_neox": ("GPTNeoXModel", "GPTNeoXConfig", {**TINY, "use_cache": False}, tokens, 2),
    "t5": ("T5EncoderModel", "T5Config", T5, padded, 2),
    "vit": ("ViTModel", "ViTConfig", PICTURE, image, 2),
    "swin": ("SwinModel", "SwinConfig", {**SWIN, **EAGER}, image, 4),
    "swinv2": ("Swinv2Model", "Swinv2Config", SWIN, image, 4),
    "llama": (
        "LlamaModel",
        "LlamaConfig",
        {**TINY, "num_key_value_heads": 2, "use_cache": False},
        padded,
        2,
    ),
    "bloom": ("BloomModel", "BloomConfig", BLOOM, tokens, 2),
}


def network(name: str, **fields: Any) -> tuple[First, tuple[Tensor, ...], int]:
    model, config, given, inputs, attentions = NETWORKS[name]
    made = getattr(transformers, model)(getattr(transformers, config)(**given, **fields)).eval()
    named = inputs()
    return First(made, tuple(named)), tuple(named.values()), attentions


def count(compiled: Any, op: str) -> int:
    return compiled.stages.optimized.count(f"aten.{op}.")


@pytest.mark.parametrize("name", NETWORKS)
def test_attention_is_found(name: str) -> None:
    model, inputs, attentions = network(name)
    compiled = lampwork.compile(model)
    with torch.no_grad():
        assert_same(model, compiled(*inputs), *inputs)
    assert count(compiled, "scaled_dot_product_attention") == attentions
    assert count(compiled, "softmax") == 0


def test_weights_that_are_asked_for_stay() -> None:
    model, inputs, _ = network("bert", output_attentions=True)
    named = dict(zip(model.names, inputs, strict=True))
    compiled = lampwork.compile(model.model)
    with torch.no_grad():
        want = model.model(**named)  # the library installs hooks of its own at the first call
        got = compiled(**named)
    assert count(compiled, "scaled_dot_product_attention") == 0 and count(compiled, "softmax") == 2
    for ours, theirs in zip(got.attentions, want.attentions, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_dropout_while_training_stays() -> None:
    model, inputs, _ = network("bert")
    compiled = lampwork.compile(model.train())
    with torch.no_grad():
        compiled(*inputs)
    assert count(compiled, "scaled_dot_product_attention") == 0 and count(compiled, "dropout") > 0


def test_all_sizes_are_one_graph() -> None:
    model, _, attentions = network("bert")
    compiled = lampwork.compile(model, dynamic=True)
    for length in (7, 9, 12):
        mask = torch.ones(2, length, dtype=torch.long)
        mask[1, -3:] = 0
        inputs = (torch.randint(5, 99, (2, length)), mask)
        with torch.no_grad():
            assert_same(model, compiled(*inputs), *inputs)
    assert len(compiled.entries) == 1
    assert count(compiled, "scaled_dot_product_attention") == attentions


def test_bert_by_hand_becomes_the_fused_one() -> None:
    by_hand, fused = handwritten.build(layers=2, width=64, heads=4)
    inputs = (torch.randint(0, 30522, (2, 12)), torch.rand(2, 12) > 0.2)
    compiled = [lampwork.compile(model) for model in (by_hand, fused)]
    with torch.no_grad():
        got = [fn(*inputs) for fn in compiled]
        assert_same(by_hand, got[0], *inputs)
    assert torch.equal(got[0], got[1])
    for op in ("scaled_dot_product_attention", "layer_norm", "gelu", "linear"):
        assert count(compiled[0], op) == count(compiled[1], op), op
    for op in ("softmax", "erf", "sqrt", "matmul"):
        assert count(compiled[0], op) == 0, op
