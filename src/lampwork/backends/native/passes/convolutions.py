"""What the passes over convolutions share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import fx

from lampwork.codegen.target import Target
from lampwork.plugins.context import PassContext
from lampwork.transforms.convolution import Convolution, convolution, spec
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


def has_onednn(conv: Convolution, target: Target) -> bool:
    """Whether oneDNN convolves it where the code runs, and each group by itself: groups of an odd number of channels of
    bfloat16 are multiplied in pairs there, the last one with the next group's first and a zero, which makes nan of an
    inf of the neighbour's. Depthwise ones have code of their own. What another machine's does is not known here."""
    if target.standalone or target.triple or not torch.backends.mkldnn.is_available():
        return False
    dtype, weight = spec(conv.x).dtype, spec(conv.weight)
    if dtype is torch.bfloat16:
        is_alone = conv.groups == 1 or weight.shape[1] % 2 == 0 or weight.shape[0] == conv.groups
        return is_alone and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32 or (
        dtype is torch.float16 and bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    )
