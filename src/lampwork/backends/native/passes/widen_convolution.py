"""The pass `widen-convolution`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import fx

from lampwork.backends.native.passes.channels_last_convolution import has_template
from lampwork.backends.native.passes.convolutions import eligible, has_onednn
from lampwork.codegen.target import Target
from lampwork.config import Config
from lampwork.plugins.context import PassContext
from lampwork.records import record
from lampwork.rewriting.apply.edit import Editor
from lampwork.rewriting.apply.edit import replace as replace_node
from lampwork.rewriting.apply.layout import adopt_strides, propagate_strides
from lampwork.rewriting.schema import is_pinned
from lampwork.transforms.convolution import Convolution, spec
from lampwork.verdict import No, Verdict, Yes

aten = torch.ops.aten


@record
class WidenConvolution:
    """Convolutions of a half type without a template or right code in oneDNN for this processor are those of float32,
    rounded: groups of an odd number of channels, groups that do not fit vectors. What is left to them is a loop
    over single numbers, hundreds of times as slow. The float32 copies are of weights of few channels a group only.

    before:  %c = conv2d(%x, %w, %b, [1, 1], [1, 1], [1, 1], 4)                  of 36 channels in float16
    after:   %d = conv2d(_to_copy(%x), _to_copy(%w), _to_copy(%b), [1, 1], [1, 1], [1, 1], 4),
             %c = _to_copy(%d, dtype=float16)
    """

    name: ClassVar[str] = "widen-convolution"

    target: Callable[[Config], Target]

    def run(self, graph: fx.Graph, ctx: PassContext) -> None:
        target = self.target(ctx.config)
        changed: list[fx.Node] = []
        for conv in eligible(graph, ctx, self.name, lambda conv: _eligible(conv, target)):
            was, new = spec(conv.node), _widened(conv, ctx.editor(graph, conv.node))
            replace_node(graph, conv.node, new)
            if adopt_strides(new, was):
                changed.append(new)
        propagate_strides(graph, ctx.infer, changed)


def _eligible(conv: Convolution, target: Target) -> Verdict:
    x, w = spec(conv.x), spec(conv.weight)
    if x.dtype not in (torch.bfloat16, torch.float16):
        return No(f"the input is {x.dtype}")
    if has_onednn(conv) and not target.standalone:
        return No("oneDNN has code for it")
    if isinstance(has_template(conv, target), Yes):
        return No("it has a template")
    if is_pinned(conv.node):
        return No("it has an effect")
    if any(each.device.type != "cpu" or each.dtype is not x.dtype for each in (x, w)):
        return No("the operands differ in dtype or device")
    if spec(conv.node).numel == 0 or x.numel == 0:
        return No("there are no elements")
    if conv.groups == 1:
        return No("its weights would be twice as large")
    return Yes()


def _widened(conv: Convolution, edit: Editor) -> fx.Node:
    node: Any = conv.node
    args: list[Any] = list(node.args)
    for place, value in enumerate(args[:3]):
        if isinstance(value, fx.Node):
            args[place] = edit.call(aten._to_copy.default, value, dtype=torch.float32)
    wide = edit.call(node.target, *args, **node.kwargs)
    return edit.call(aten._to_copy.default, wide, dtype=spec(node).dtype)
