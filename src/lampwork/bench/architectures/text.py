"""Architectures that read and write text."""

from __future__ import annotations

from typing import Any

from lampwork.bench.architectures.architecture import Architecture, Kind

TINY: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
GROUPED: dict[str, Any] = dict(TINY, num_key_value_heads=2)
DEEPER: dict[str, Any] = {**TINY, "num_hidden_layers": 3}
ENDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# What configurations call the same things: GPT-2's names, and those of encoder-decoders.
GPT: dict[str, Any] = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4}
PAIR: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
T5: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
T5_GEMMA: dict[str, Any] = dict(GROUPED, head_dim=8, sliding_window=4)
PAIR_INPUTS = {"input_ids": "tokens", "attention_mask": "mask", "decoder_input_ids": "decoder tokens"}


def _encoder(name: str, stem: str, **fields: Any) -> Architecture:
    return Architecture(name, "encoder", f"{stem}Model", f"{stem}Config", fields)


def _decoder(
    name: str, stem: str, suffix: str = "ForCausalLM", single: bool = False, **fields: Any
) -> Architecture:
    return Architecture(
        name, "decoder", f"{stem}{suffix}", f"{stem}Config", fields, generates=True, single=single
    )


def _pair(name: str, model: str, config: str, single: bool = False, **fields: Any) -> Architecture:
    kind: Kind = "encoder-decoder"
    return Architecture(name, kind, model, config, fields, PAIR_INPUTS, generates=True, single=single)


ENCODERS = (
    _encoder("bert", "Bert", **TINY),
    _encoder("roberta", "Roberta", **TINY),
    _encoder("distilbert", "DistilBert", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    _encoder("albert", "Albert", **TINY, embedding_size=16),
    _encoder("electra", "Electra", **TINY, embedding_size=16),
    _encoder(
        "deberta_v2",
        "DebertaV2",
        **TINY,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=8,
    ),
    _encoder("deberta", "Deberta", **TINY, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    _encoder("mpnet", "MPNet", **TINY),
    _encoder("modernbert", "ModernBert", **TINY, **ENDS),
    _encoder(
        "funnel", "Funnel", vocab_size=99, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48
    ),
    _encoder("xlnet", "XLNet", vocab_size=99, d_model=32, n_layer=2, n_head=4, d_inner=48),
    _encoder("fnet", "FNet", vocab_size=99, hidden_size=32, num_hidden_layers=2, intermediate_size=48),
    _encoder("roformer", "RoFormer", **TINY),
    _encoder("squeezebert", "SqueezeBert", **TINY, embedding_size=32),
    _encoder("convbert", "ConvBert", **TINY, embedding_size=32),
    _encoder("esm", "Esm", **TINY, pad_token_id=1, mask_token_id=2),
    _encoder("tapas", "Tapas", **TINY),
    _encoder("longformer", "Longformer", **TINY, attention_window=[4, 4]),
)

DECODERS = (
    _decoder("gpt2", "GPT2", "LMHeadModel", **GPT),
    _decoder(
        "gpt_neo",
        "GPTNeo",
        vocab_size=99,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
    ),
    _decoder("gpt_neox", "GPTNeoX", **TINY),
    _decoder("gptj", "GPTJ", **GPT, rotary_dim=4),
    _decoder("codegen", "CodeGen", **GPT, rotary_dim=4),
    _decoder("gpt_bigcode", "GPTBigCode", **GPT),
    _decoder(
        "opt",
        "OPT",
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        word_embed_proj_dim=32,
    ),
    _decoder("llama", "Llama", **GROUPED),
    _decoder("mistral", "Mistral", **GROUPED, sliding_window=4),
    _decoder("qwen2", "Qwen2", **GROUPED),
    _decoder("qwen3", "Qwen3", **GROUPED, head_dim=8),
    _decoder("gemma", "Gemma", **GROUPED, head_dim=8),
    _decoder("gemma2", "Gemma2", **GROUPED, head_dim=8),
    Architecture(
        "gemma3",
        "decoder",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        dict(GROUPED, head_dim=8),
        generates=True,
    ),
    _decoder("phi", "Phi", **TINY),
    _decoder("phi3", "Phi3", **GROUPED, **ENDS),
    _decoder("falcon", "Falcon", vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    _decoder("bloom", "Bloom", vocab_size=99, hidden_size=32, n_layer=2, n_head=4),
    _decoder("mpt", "Mpt", vocab_size=99, d_model=32, n_layers=2, n_heads=4),
    _decoder("stablelm", "StableLm", **GROUPED),
    _decoder("starcoder2", "Starcoder2", **GROUPED),
    _decoder("cohere", "Cohere", **GROUPED),
    _decoder("olmo2", "Olmo2", **GROUPED),
    _decoder("granite", "Granite", **GROUPED),
    _decoder("persimmon", "Persimmon", **TINY),
    _decoder("nemotron", "Nemotron", **GROUPED),
    _decoder(
        "xglm", "XGLM", single=True, vocab_size=99, d_model=32, num_layers=2, attention_heads=4, ffn_dim=48
    ),
    _decoder("biogpt", "BioGpt", **TINY),
    Architecture("lfm2", "decoder", "Lfm2ForCausalLM", "Lfm2Config", GROUPED),
)

EXPERTS = (
    _decoder("mixtral", "Mixtral", single=True, **GROUPED, num_local_experts=4),
    _decoder(
        "qwen2_moe",
        "Qwen2Moe",
        single=True,
        **GROUPED,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
    ),
    _decoder("olmoe", "Olmoe", single=True, **GROUPED, num_experts=4, num_experts_per_tok=2),
    _decoder(
        "deepseek_v3",
        "DeepseekV3",
        single=True,
        **TINY,
        num_key_value_heads=4,
        moe_intermediate_size=24,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
    ),
    _decoder(
        "gpt_oss", "GptOss", single=True, **GROUPED, head_dim=8, num_local_experts=4, num_experts_per_tok=2
    ),
    _pair(
        "switch_transformers",
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        **T5,
        num_experts=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        single=True,
    ),
    Architecture(
        "deepseek_v2",
        "decoder",
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        dict(
            TINY,
            num_key_value_heads=4,
            head_dim=8,
            moe_intermediate_size=24,
            n_routed_experts=4,
            n_shared_experts=1,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=8,
        ),
        single=True,
    ),
    Architecture(
        "llama4",
        "decoder",
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        dict(GROUPED, head_dim=8, intermediate_size_mlp=48, num_local_experts=4, max_position_embeddings=64),
        single=True,
    ),
)

STATE_SPACES = (
    _decoder("mamba", "Mamba", vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=4),
    _decoder(
        "mamba2",
        "Mamba2",
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=4,
    ),
    _decoder("falcon_mamba", "FalconMamba", vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=4),
    _decoder("rwkv", "Rwkv", vocab_size=99, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32),
    _decoder(
        "recurrent_gemma",
        "RecurrentGemma",
        **DEEPER,
        lru_width=32,
        attention_window_size=4,
    ),
    _decoder(
        "jamba",
        "Jamba",
        single=True,
        **GROUPED,
        num_experts=2,
        num_experts_per_tok=1,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
)

PAIRS = (
    _pair("t5", "T5ForConditionalGeneration", "T5Config", **T5),
    _pair("mt5", "MT5ForConditionalGeneration", "MT5Config", **T5),
    _pair("bart", "BartForConditionalGeneration", "BartConfig", **PAIR),
    _pair("marian", "MarianMTModel", "MarianConfig", **PAIR, **ENDS, decoder_start_token_id=1),
    _pair("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", **PAIR),
    _pair("m2m_100", "M2M100ForConditionalGeneration", "M2M100Config", **PAIR),
    _pair("blenderbot", "BlenderbotForConditionalGeneration", "BlenderbotConfig", **PAIR),
    Architecture(
        "t5gemma",
        "encoder-decoder",
        "T5GemmaForConditionalGeneration",
        "T5GemmaConfig",
        {"encoder": T5_GEMMA, "decoder": T5_GEMMA, "vocab_size": 99},
        PAIR_INPUTS,
    ),
    _pair("led", "LEDForConditionalGeneration", "LEDConfig", **PAIR, attention_window=4),
)

TEXTS = (*ENCODERS, *DECODERS, *EXPERTS, *STATE_SPACES, *PAIRS)
