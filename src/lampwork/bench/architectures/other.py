"""Architectures that see, hear, or both read and see."""

from __future__ import annotations

from typing import Any

from lampwork.bench.architectures.architecture import Architecture

IMAGE: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
SIZED: dict[str, Any] = {**IMAGE, "image_size": [32, 32]}
SPEECH: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
LISTENER: dict[str, Any] = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_source_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "projection_dim": 16,
}
READER: dict[str, Any] = dict(TOWER, vocab_size=99, max_position_embeddings=16, eos_token_id=2)
VIEWER: dict[str, Any] = dict(TOWER, image_size=32, patch_size=8)
# Finds objects in what a small convolutional network makes of an image.
BACKBONE: dict[str, Any] = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage2", "stage3", "stage4"],
}
DETECTOR: dict[str, Any] = {
    "backbone_config": BACKBONE,
    "num_queries": 6,
    "encoder_layers": 2,
    "encoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_layers": 2,
    "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4,
}
PIXELS = {"pixel_values": (3, 32, 32)}
WAVE = {"input_values": (400,)}


def _vision(name: str, stem: str, suffix: str = "Model", **fields: Any) -> Architecture:
    return Architecture(name, "vision", f"{stem}{suffix}", f"{stem}Config", fields, PIXELS)


VISION = (
    _vision("vit", "ViT", **IMAGE),
    _vision("deit", "DeiT", **IMAGE),
    _vision("beit", "Beit", **IMAGE, use_relative_position_bias=True),
    _vision("dinov2", "Dinov2", **IMAGE),
    _vision(
        "swin",
        "Swin",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    _vision(
        "swinv2",
        "Swinv2",
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    _vision("convnext", "ConvNext", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1]),
    _vision("resnet", "ResNet", embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    _vision(
        "regnet",
        "RegNet",
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 2, 1],
        groups_width=4,
    ),
    _vision(
        "segformer",
        "Segformer",
        "ForSemanticSegmentation",
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 24, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
        num_labels=5,
    ),
    _vision(
        "mobilevit",
        "MobileViT",
        image_size=32,
        hidden_sizes=[16, 24, 32],
        neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32],
        num_attention_heads=4,
    ),
    _vision("mobilenet_v2", "MobileNetV2", image_size=32, depth_multiplier=0.25),
    _vision("poolformer", "PoolFormer", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    _vision(
        "pvt",
        "Pvt",
        image_size=32,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
    ),
    _vision(
        "focalnet", "FocalNet", image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], focal_levels=[2, 2]
    ),
    _vision("dinov3_vit", "DINOv3ViT", **IMAGE),
    _vision("vitdet", "VitDet", **{k: v for k, v in IMAGE.items() if k != "intermediate_size"}),
    _vision("detr", "Detr", "ForObjectDetection", **DETECTOR, d_model=32),
    Architecture(
        "dab_detr",
        "vision",
        "DabDetrForObjectDetection",
        "DabDetrConfig",
        dict(DETECTOR, hidden_size=32),
        PIXELS,
        single=True,
    ),
    _vision("deformable_detr", "DeformableDetr", "Model", **DETECTOR, d_model=32),
    _vision("yolos", "Yolos", **SIZED, num_detection_tokens=4),
)

AUDIO = (
    Architecture("wav2vec2", "audio", "Wav2Vec2Model", "Wav2Vec2Config", SPEECH, WAVE),
    Architecture("hubert", "audio", "HubertModel", "HubertConfig", SPEECH, WAVE),
    Architecture("wavlm", "audio", "WavLMModel", "WavLMConfig", SPEECH, WAVE),
    Architecture(
        "whisper",
        "audio",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        dict(LISTENER, num_mel_bins=8),
        {"input_features": (8, 32), "decoder_input_ids": "decoder tokens"},
        generates=True,
    ),
    Architecture(
        "speech_to_text",
        "audio",
        "Speech2TextForConditionalGeneration",
        "Speech2TextConfig",
        dict(LISTENER, input_feat_per_channel=8, conv_channels=16),
        {"input_features": (16, 8), "decoder_input_ids": "decoder tokens"},
        generates=True,
    ),
    Architecture(
        "audio_spectrogram_transformer",
        "audio",
        "ASTModel",
        "ASTConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "patch_size": 4,
            "frequency_stride": 4,
            "time_stride": 4,
            "max_length": 16,
            "num_mel_bins": 8,
        },
        {"input_values": (16, 8)},
    ),
)

MULTIMODAL = (
    Architecture(
        "clip",
        "multimodal",
        "CLIPModel",
        "CLIPConfig",
        {"text_config": READER, "vision_config": VIEWER, "projection_dim": 16},
        {"input_ids": "tokens", "attention_mask": "mask", **PIXELS},
    ),
    Architecture(
        "siglip",
        "multimodal",
        "SiglipModel",
        "SiglipConfig",
        {"text_config": READER, "vision_config": VIEWER},
        {"input_ids": "tokens", "attention_mask": "mask", **PIXELS},
    ),
    Architecture(
        "blip",
        "multimodal",
        "BlipModel",
        "BlipConfig",
        {"text_config": READER, "vision_config": VIEWER, "projection_dim": 16},
        {"input_ids": "tokens", "attention_mask": "mask", **PIXELS},
    ),
)

OTHERS = (*VISION, *AUDIO, *MULTIMODAL)
