"""The pass `bias-behind-convolution`."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import fx

from lampwork.backends.native.passes.convolutions import eligible
from lampwork.graph.shapes_common import is_channels_last_strided
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.edit import replace
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.schema import bound_args, is_pinned
from lampwork.transforms.convolution import Convolution, spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


@record
class BiasBehindConvolution:
    """The bias of a convolution on a CUDA device is a sum of its own, which is computed with what follows: ATen adds it
    to cuDNN's result in a kernel of its own, with the same rounding.

    before:  %c = conv2d(%x, %w, %b, [1, 1], [1, 1])                                    on cuda:0
    after:   %d = conv2d(%x, %w, None, [1, 1], [1, 1]), %c = add(%d, view(%b, [64, 1, 1]))
    """

    name: ClassVar[str] = "bias-behind-convolution"

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        changed: list[fx.Node] = []
        for conv in eligible(graph, ctx, self.name, _eligible):
            bias, was = cast(fx.Node, conv.bias), spec(conv.node)
            edit = ctx.editor(graph, conv.node)
            x, weight, _, *rest = bound_args(conv.node)
            bare = edit.call(cast(Any, conv.node.target), x, weight, None, *rest)
            column = edit.call(aten.view.default, bias, [spec(bias).shape[0], *([1] * conv.rank)])
            new = edit.call(aten.add.Tensor, bare, column)
            replace(graph, conv.node, new)
            if adopt_strides(new, was):
                changed.append(new)
        propagate_strides(graph, ctx.infer, changed)


def _eligible(conv: Convolution) -> Verdict:
    x = spec(conv.x)
    if x.device.type != "cuda":
        return No(f"it is computed on {x.device}")
    if conv.bias is None:
        return No("it has no bias")
    if is_pinned(conv.node):
        return No("it has an effect")
    if spec(conv.bias).dtype is not spec(conv.node).dtype or spec(conv.bias).device != x.device:
        return No("the operands differ in dtype or device")
    if conv.groups > 1 and spec(conv.weight).shape[1] == 1 and not is_channels_last_strided(x):
        return No("ATen's own code for single channels adds the bias")
    return Yes()
