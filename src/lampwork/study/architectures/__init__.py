"""The architectures of the study, in plain PyTorch, each by one small network."""

from __future__ import annotations

from types import MappingProxyType

from lampwork.study.architectures.dense import FeedForward, Recommender
from lampwork.study.architectures.graphs import MessagePassing
from lampwork.study.architectures.images import Convolutional, Detector, Diffusion
from lampwork.study.architectures.network import Architecture, Network
from lampwork.study.architectures.sequences import (
    Attention,
    Decoder,
    Encoder,
    Experts,
    Recurrent,
    StateSpace,
)

__all__ = ["ARCHITECTURES", "Architecture", "Network"]

_ALL = (
    Architecture(
        "feed-forward",
        "residual blocks of two linear layers with layer norm and GELU",
        FeedForward,
        {"width": 32, "inner": 64, "blocks": 2, "classes": 5},
    ),
    Architecture(
        "convolutional",
        "residual blocks of 3 x 3 convolutions with batch norm",
        Convolutional,
        {"width": 8, "stages": 2, "side": 16, "classes": 5},
    ),
    Architecture(
        "recurrent",
        "embeddings, an LSTM of two layers, a word at each step",
        Recurrent,
        {"words": 50, "width": 16, "length": 6},
    ),
    Architecture(
        "attention",
        "causal attention by torch's own function, with its four projections",
        Attention,
        {"width": 32, "heads": 2, "length": 160},
    ),
    Architecture(
        "encoder",
        "layers of BERT's kind, their attention written out, with a mask",
        Encoder,
        {"words": 50, "width": 32, "heads": 2, "inner": 64, "layers": 2, "length": 12},
    ),
    Architecture(
        "decoder",
        "one token of a model of Llama's kind: RMS norm, rotary places, grouped queries, a cache",
        Decoder,
        {"words": 50, "width": 32, "inner": 48, "layers": 2, "heads": 4, "groups": 2, "length": 16},
    ),
    Architecture(
        "experts",
        "a gate that sends each token to two of eight feed-forward networks",
        Experts,
        {"width": 16, "inner": 32, "experts": 3, "length": 8},
    ),
    Architecture(
        "state-space",
        "a selective scan, step by step, behind a short convolution",
        StateSpace,
        {"width": 16, "inner": 32, "states": 4, "rank": 2, "length": 6},
    ),
    Architecture(
        "graph",
        "messages along edges, gathered by index and summed by index_add",
        MessagePassing,
        {"width": 16, "rounds": 2, "nodes": 12, "degree": 3},
    ),
    Architecture(
        "diffusion",
        "a U-Net of convolutions with group norm and SiLU, attention between pixels in its middle",
        Diffusion,
        {"widths": (8, 16), "side": 8, "heads": 2},
    ),
    Architecture(
        "recommender",
        "bags of embeddings and linear layers, and the inner products of all pairs",
        Recommender,
        {"tables": 3, "rows": 50, "width": 8, "ids": 2, "inner": 16},
    ),
    Architecture(
        "detector",
        "a convolutional backbone, two heads, the best boxes and which of them overlap",
        Detector,
        {"width": 8, "stages": 2, "side": 32, "classes": 3, "most": 10},
    ),
)

ARCHITECTURES = MappingProxyType({each.name: each for each in _ALL})
"""By name, in the order of the page."""
