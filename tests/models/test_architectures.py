"""Architectures of `transformers` and plain torch, tiny and with random weights, against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from same import assert_same, flatten
from torch import nn

import lampwork

TINY: dict[str, Any] = dict(
    vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
)
IMAGE: dict[str, Any] = dict(
    image_size=32,
    patch_size=8,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
)


def ids(length: int = 7) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 99, (2, length))}


def masked(length: int = 7) -> dict[str, Any]:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length - 2 :] = 0
    return {**ids(length), "attention_mask": mask}


def both() -> dict[str, Any]:
    return {**masked(), "decoder_input_ids": torch.randint(3, 99, (2, 5))}


def pixels(size: int = 32) -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, size, size)}


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: hf.BertModel(hf.BertConfig(**TINY)),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**TINY)),
    "distilbert": lambda: hf.DistilBertModel(
        hf.DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=48)
    ),
    "albert": lambda: hf.AlbertModel(hf.AlbertConfig(**TINY, embedding_size=16)),
    "electra": lambda: hf.ElectraModel(hf.ElectraConfig(**TINY, embedding_size=16)),
    "deberta_v2": lambda: hf.DebertaV2Model(
        hf.DebertaV2Config(**TINY, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
    ),
    "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(**TINY)),
    "deberta": lambda: hf.DebertaModel(
        hf.DebertaConfig(**TINY, relative_attention=True, pos_att_type=["p2c", "c2p"])
    ),
    "modernbert": lambda: hf.ModernBertModel(hf.ModernBertConfig(**TINY, pad_token_id=0)),
    "funnel": lambda: hf.FunnelModel(
        hf.FunnelConfig(vocab_size=99, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48)
    ),
}

DECODERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)),
    "gpt_neo": lambda: hf.GPTNeoForCausalLM(
        hf.GPTNeoConfig(
            vocab_size=99,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
        )
    ),
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**TINY)),
    "gptj": lambda: hf.GPTJForCausalLM(
        hf.GPTJConfig(vocab_size=99, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
    ),
    "opt": lambda: hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            ffn_dim=48,
            word_embed_proj_dim=32,
        )
    ),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**TINY, num_key_value_heads=2)),
    "mistral": lambda: hf.MistralForCausalLM(
        hf.MistralConfig(**TINY, num_key_value_heads=2, sliding_window=4)
    ),
    "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**TINY, num_key_value_heads=2)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**TINY, num_key_value_heads=2, head_dim=8)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**TINY, num_key_value_heads=2, head_dim=8)),
    "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**TINY)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**TINY, num_key_value_heads=2, pad_token_id=0)),
    "falcon": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    ),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4)),
    "mixtral": lambda: hf.MixtralForCausalLM(
        hf.MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=4)
    ),
    "mamba": lambda: hf.MambaForCausalLM(
        hf.MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=4)
    ),
}

SEQ2SEQ: dict[str, Callable[[], nn.Module]] = {
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    ),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**_seq2seq())),
    "marian": lambda: hf.MarianMTModel(hf.MarianConfig(**_seq2seq(), pad_token_id=0)),
}


def _seq2seq() -> dict[str, Any]:
    return dict(
        vocab_size=99,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
    )


VISION: dict[str, Callable[[], nn.Module]] = {
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**IMAGE)),
    "deit": lambda: hf.DeiTModel(hf.DeiTConfig(**IMAGE)),
    "beit": lambda: hf.BeitModel(hf.BeitConfig(**IMAGE, use_relative_position_bias=True)),
    "swin": lambda: hf.SwinModel(
        hf.SwinConfig(
            image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
        )
    ),
    "convnext": lambda: hf.ConvNextModel(
        hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])
    ),
    "resnet": lambda: hf.ResNetModel(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])
    ),
    "segformer": lambda: hf.SegformerForSemanticSegmentation(
        hf.SegformerConfig(
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 16, 24, 32],
            num_attention_heads=[1, 2, 2, 4],
            decoder_hidden_size=16,
            num_labels=5,
        )
    ),
    "mobilevit": lambda: hf.MobileViTModel(
        hf.MobileViTConfig(
            image_size=32,
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
            num_attention_heads=4,
        )
    ),
    "mobilenet_v2": lambda: hf.MobileNetV2Model(hf.MobileNetV2Config(image_size=32, depth_multiplier=0.25)),
}


def with_statistics(model: nn.Module) -> nn.Module:
    """Batch norms with statistics that differ from (0, 1), as trained ones do."""
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return model


def inputs_of(kind: str) -> dict[str, Any]:
    if kind == "vision":
        return pixels()
    if kind == "seq2seq":
        return both()
    return masked()


TABLES = {"encoder": ENCODERS, "decoder": DECODERS, "seq2seq": SEQ2SEQ, "vision": VISION}
NAMES = [(kind, name) for kind, table in TABLES.items() for name in table]


def build(kind: str, name: str) -> nn.Module:
    torch.manual_seed(1)
    return with_statistics(TABLES[kind][name]()).eval()


# Their forwards ask for data in a loop over layers (the size of a position table, a scan's own cache): those loops run
# eager, which strict mode would not allow.
PARTLY = ("deberta", "mamba")
# They do not run in float64.
SINGLE = ("mixtral",)


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_architecture(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in PARTLY:
        monkeypatch.setenv("LAMPWORK_STRICT", "0")
    model = build(kind, name)
    compiled = lampwork.compile(model)
    lampwork.reset()
    with torch.no_grad():
        model(**inputs_of(kind))  # the library installs hooks of its own at the first call
        for _ in range(2):
            inputs = inputs_of(kind)
            got = compiled(**copy.deepcopy(inputs))
            if name in SINGLE:
                torch.testing.assert_close(flatten(got), flatten(model(**inputs)))
            else:
                assert_same(model, got, **inputs)
    if name not in PARTLY:
        stats = lampwork.stats()
        assert stats["compiled_calls"] == 2, stats


@pytest.mark.parametrize(
    ("kind", "name"), [("encoder", "bert"), ("decoder", "llama"), ("seq2seq", "t5"), ("vision", "convnext")]
)
def test_training_step(kind: str, name: str) -> None:
    """Dropout draws eager's numbers, and gradients and running statistics are eager's."""
    model, twin = build(kind, name).train(), build(kind, name).train()
    compiled = lampwork.compile(model)
    inputs = inputs_of(kind)
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


def test_decoding_with_a_cache() -> None:
    model = build("decoder", "gpt2")
    compiled = lampwork.compile(model)
    tokens = torch.randint(3, 99, (1, 5))
    with torch.no_grad():
        want = model(tokens).logits
        first = compiled(tokens[:, :4], use_cache=True)
        second = compiled(tokens[:, 4:], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(first.logits, want[:, :4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(second.logits, want[:, 4:], rtol=1e-4, atol=1e-5)
