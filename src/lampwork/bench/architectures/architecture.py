"""What an architecture is, how one is built, and what it is called with."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from lampwork.records import record

Kind = Literal["encoder", "decoder", "encoder-decoder", "vision", "audio", "multimodal"]

VOCABULARY = 99
BATCH = 2
TOKENS = 7
DECODER_TOKENS = 4
PADDED = 2  # how many tokens of the last row the mask hides


@record
class Architecture:
    """A model of `transformers`: class `model` with class `config` of `fields`.

    `inputs`: the keyword arguments of the forward, each with what it is: "tokens", "decoder tokens", "mask", or the
    shape of a tensor of floats after the batch.
    `generates`: has a `generate()` that needs nothing but these inputs.
    `single`: does not run in float64, so the accuracy of float32 cannot be told from it.
    """

    name: str
    kind: Kind
    model: str
    config: str
    fields: Mapping[str, Any]
    inputs: Mapping[str, str | tuple[int, ...]] = field(
        default_factory=lambda: {"input_ids": "tokens", "attention_mask": "mask"}
    )
    generates: bool = False
    single: bool = False


def build(architecture: Architecture, seed: int = 1) -> nn.Module:
    """The model in eval mode, with weights from `seed` and batch norms with statistics as after training."""
    torch.manual_seed(seed)
    library: Any = importlib.import_module("transformers")
    config = getattr(library, architecture.config)(**architecture.fields)
    model = cast(nn.Module, getattr(library, architecture.model)(config))
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            assert part.running_var is not None
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return model.eval()


def inputs_of(architecture: Architecture, without: Sequence[str] = ()) -> dict[str, Tensor]:
    """Random keyword arguments of the forward, but for those of the kinds `without`."""
    return {name: _input(what) for name, what in architecture.inputs.items() if what not in without}


def _input(what: str | tuple[int, ...]) -> Tensor:
    if isinstance(what, tuple):
        return torch.randn(BATCH, *what)
    if what == "mask":
        mask = torch.ones(BATCH, TOKENS, dtype=torch.long)
        mask[-1, TOKENS - PADDED :] = 0
        return mask
    return torch.randint(3, VOCABULARY, (BATCH, DECODER_TOKENS if what == "decoder tokens" else TOKENS))
