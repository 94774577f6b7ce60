"""Transformers: the classes of the package of that name, built from configurations, and a decoder of our own."""

from __future__ import annotations

import importlib
from typing import Any, cast

import torch
from torch import Tensor, nn

from lampwork.bench.networks import Decoder
from lampwork.bench.workloads.workload import Maker, image, tokens


def _transformers() -> Any:
    return importlib.import_module("transformers")


class Output(nn.Module):
    """Takes one tensor out of a transformers output, so that all compilers, exporters included, see a tensor."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, getattr(self.model(x), self.name))


def bert(layers: int = 12) -> nn.Module:
    """BERT-base: int64[N, T] -> float32[N, T, 768]."""
    t = _transformers()
    return Output(t.BertModel(t.BertConfig(num_hidden_layers=layers)), "last_hidden_state").eval()


def _gpt2() -> nn.Module:
    t = _transformers()
    return Output(t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), "logits").eval()


def _llama() -> nn.Module:
    t = _transformers()
    config = t.LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    return Output(t.LlamaForCausalLM(config), "logits").eval()


def _vit() -> nn.Module:
    t = _transformers()
    config = t.ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    return Output(t.ViTModel(config, add_pooling_layer=False), "last_hidden_state").eval()


def _swin() -> nn.Module:
    """Swin-T, which is what the configuration's defaults describe."""
    t = _transformers()
    model = t.SwinModel(t.SwinConfig(), add_pooling_layer=False)
    for module in model.modules():
        # They start from zero, which would leave the gather of relative positions untested.
        if hasattr(module, "relative_position_bias_table"):
            nn.init.normal_(module.relative_position_bias_table, std=0.5)
    return Output(model, "last_hidden_state").eval()


def _t5_encoder() -> nn.Module:
    """The encoder of T5-small."""
    t = _transformers()
    return Output(t.T5EncoderModel(t.T5Config()), "last_hidden_state").eval()


def _decoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = Decoder().eval()
    return model, (*tokens(32000, 1), torch.tensor([500]), model.cache())


TRANSFORMERS: dict[str, Maker] = {
    "vit": lambda: (_vit(), image()),
    "swin": lambda: (_swin(), image()),
    "bert": lambda: (bert(), tokens(30522, 128)),
    "bert_8": lambda: (bert(), tokens(30522, 128, 8)),
    "t5_encoder": lambda: (_t5_encoder(), tokens(32128, 128)),
    "gpt2": lambda: (_gpt2(), tokens(50257, 128)),
    "llama": lambda: (_llama(), tokens(32000, 128)),
    "llama_step": _decoder,
}
