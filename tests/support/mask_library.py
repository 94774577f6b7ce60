"""Programs that call attention with a mask, beside a library that makes masks where transformers does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

LIBRARY = """
import torch

def create_causal_mask(q, allow_is_causal_skip=True):
    if allow_is_causal_skip and not torch.compiler.is_compiling():
        return None
    return wanted(q)

def create_sliding_window_causal_mask(q):
    return wanted(q)

def wanted(q):
    row = torch.arange(q.shape[2], device=q.device)
    return (row[None, :] <= row[:, None])[None, None].expand(q.shape[0], 1, -1, -1)
"""
MODEL = """
import torch
import torch.nn.functional as F

def attend(q, k, v):
    mask = MASK
    if mask is not None:
        mask = mask[..., : k.shape[2]]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
"""


def program(folder: Path, mask: str, place: str = "transformers/models/small.py") -> Callable[..., Tensor]:
    """attend(q, k, v) of a file of its own, with the mask that an expression makes."""
    found: dict[str, Any] = {}
    for name, text in (("transformers/masking_utils.py", LIBRARY), (place, MODEL.replace("MASK", mask))):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        exec(compile(text, str(file), "exec"), found)
    return found["attend"]
