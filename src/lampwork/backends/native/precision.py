"""float32 products in bfloat16, where the user asks for it: `torch.set_float32_matmul_precision("medium")`, or
`fp32_precision = "bf16"` of `torch.backends`, `torch.backends.mkldnn.matmul` or `torch.backends.mkldnn.conv`."""

from __future__ import annotations

import torch

from lampwork.codegen.target import Target
from lampwork.lower.context import InBf16

_ASKED = {"matmul": "product", "conv": "convolution"}


def float32_in_bf16(target: Target) -> InBf16:
    """What is asked for now. Entries are guarded on it (`GlobalState`).

    Without instructions for bfloat16 it would cost accuracy and win nothing, so nothing is; where ATen has better ones
    than the templates, float32 is left to it.
    """
    asked = {
        name
        for operator, name in _ASKED.items()
        if torch._C._get_fp32_precision_getter("mkldnn", operator) == "bf16"
    }
    is_widened = "bf16" in target.products and target.dot("bf16") is None
    if target.bf16_work is None or is_widened:
        asked.clear()
    return InBf16("product" in asked, "convolution" in asked)
