"""What the passes over convolutions share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import fx

from lampwork.plugins.context import PassContext
from lampwork.transforms.convolution import Convolution, convolution
from lampwork.verdict import No, Verdict


def eligible(
    graph: fx.Graph, ctx: PassContext, name: str, judge: Callable[[Convolution], Verdict]
) -> Iterator[Convolution]:
    """The convolutions that `judge` says yes to and the pass `name` may change; the reasons of the others are noted."""
    for node in list(graph.nodes):
        conv = convolution(node) if node.op == "call_function" and not node._erased else None
        if conv is None:
            continue
        verdict = No("a backend from outside takes it") if ctx.foreign(node) else judge(conv)
        if isinstance(verdict, No):
            ctx.refuse(name, verdict.reason)
        elif ctx.spend(name, node):
            yield conv


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN convolves it on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32 or (
        dtype is torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    )
